// Temporary extensions of a group's timeout. Each applies to all operations that begin before the first of
// them ends. See addEphemeralTimeout in c10d's Backend.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <vector>

namespace ringreduce::torch_backend {

class ExtraTime {
 public:
  using Milliseconds = std::chrono::milliseconds;

  void add(Milliseconds time) {
    const std::lock_guard lock(mutex_);
    extensions_.push_back({time, nobody});
    any_ = true;
  }

  // The extra time of an operation that begins now.
  Milliseconds now() const {
    Milliseconds sum{0};
    if (!any_) return sum;
    const std::lock_guard lock(mutex_);
    for (const auto& extension : extensions_) sum += extension.time;
    return sum;
  }

  // Records that an operation with this key has begun. Returns whether its end must be reported.
  bool begins(std::uint64_t key) {
    if (!any_) return false;
    const std::lock_guard lock(mutex_);
    bool first = false;
    for (auto& extension : extensions_) {
      if (extension.first != nobody) continue;
      extension.first = key;
      first = true;
    }
    return first;
  }

  void ends(std::uint64_t key) {
    const std::lock_guard lock(mutex_);
    std::erase_if(extensions_, [&](const Extension& extension) { return extension.first == key; });
    any_ = !extensions_.empty();
  }

 private:
  static constexpr std::uint64_t nobody = 0;
  struct Extension {
    Milliseconds time;
    std::uint64_t first;  // the operation whose end ends the extension
  };
  mutable std::mutex mutex_;
  std::vector<Extension> extensions_;
  std::atomic<bool> any_{false};
};

}  // namespace ringreduce::torch_backend

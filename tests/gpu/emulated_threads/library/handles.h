// What callers hold as void*. One that was never given, or was destroyed, is refused: CUDA may crash then.
#pragma once

#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

namespace ringreduce::emulated {

template <class T>
class Handles {
 public:
  explicit Handles(const char* name) : name_(name) {}

  void* add(std::shared_ptr<T> object) {
    const std::lock_guard lock(mutex_);
    void* const handle = object.get();
    objects_[handle] = std::move(object);
    return handle;
  }

  std::shared_ptr<T> at(void* handle) {
    const std::lock_guard lock(mutex_);
    return find(handle)->second;
  }

  std::shared_ptr<T> remove(void* handle) {
    const std::lock_guard lock(mutex_);
    const auto found = find(handle);
    auto object = std::move(found->second);
    objects_.erase(found);
    return object;
  }

 private:
  auto find(void* handle) {
    const auto found = objects_.find(handle);
    if (found == objects_.end()) throw std::invalid_argument(std::string("there is no such ") + name_);
    return found;
  }

  const char* const name_;
  std::mutex mutex_;
  std::unordered_map<void*, std::shared_ptr<T>> objects_;
};

}  // namespace ringreduce::emulated

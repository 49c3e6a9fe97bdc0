#include "transport/interface/page_changes.h"

#include <array>
#include <atomic>
#include <mutex>
#include <vector>

#include "transport/interface/of_process.h"

namespace ringreduce::page_changes {
namespace {

struct Change {
  Address begin = 0, end = 0;
};

struct Log {
  static constexpr std::uint64_t remembered = 256;

  std::mutex mutex;
  std::atomic<std::uint64_t> noted{0};
  std::array<Change, remembered> latest{};
};

Log& the_log() {
  return of_process<Log>();
}

}  // namespace

void note(const void* memory, std::size_t bytes) {
  Log& log = the_log();
  const auto begin = reinterpret_cast<Address>(memory);
  const std::lock_guard lock(log.mutex);
  const std::uint64_t number = log.noted.load(std::memory_order_relaxed);
  log.latest[number % Log::remembered] = {begin, begin + bytes};
  log.noted.store(number + 1, std::memory_order_release);
}

Follower::Follower() : seen_(the_log().noted.load(std::memory_order_acquire)) {}

bool Follower::is_behind() const {
  return the_log().noted.load(std::memory_order_acquire) != seen_;
}

void Follower::next(const std::function<void(Address, Address)>& show) {
  std::vector<Change> changes;
  {
    Log& log = the_log();
    const std::lock_guard lock(log.mutex);
    const std::uint64_t noted = log.noted.load(std::memory_order_relaxed);
    if (noted - seen_ > Log::remembered) {
      changes.push_back({0, ~Address{0}});
    } else {
      for (; seen_ != noted; ++seen_) changes.push_back(log.latest[seen_ % Log::remembered]);
    }
    seen_ = noted;
  }
  for (const Change& change : changes) show(change.begin, change.end);
}

}  // namespace ringreduce::page_changes

#include "engine/calls/turn.h"

#include <utility>

#include "transport/interface/wait.h"

namespace ringreduce {
namespace {

thread_local Turn* innermost_here = nullptr;  // of those that this thread holds

}  // namespace

bool Turn::is_among(const Turn* turn, const Turn* taken) {
  while (taken != turn && taken) taken = taken->outer_;
  return taken;
}

bool Turn::is_held_here(const Turn* turn) {
  return is_among(turn, innermost_here);
}

void Turn::taken(Turn*& innermost) {
  outer_ = std::exchange(innermost, this);
}

void Turn::lock() {
  while (!try_lock_for(std::chrono::hours(1))) {
  }
}

bool Turn::try_lock() {
  Turn*& innermost = innermost_here;  // found once: in a shared library that takes a call
  std::uint32_t expected = free;
  if (is_among(this, innermost) || !state_.compare_exchange_strong(expected, held, std::memory_order_acquire))
    return false;
  taken(innermost);
  return true;
}

bool Turn::try_lock_for(std::chrono::milliseconds limit) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + limit;
  while (state_.exchange(waited_for, std::memory_order_acquire) != free) {
    const auto left = std::chrono::duration_cast<std::chrono::microseconds>(end - Clock::now());
    if (left.count() <= 0) return false;
    futex_wait(state_, waited_for, left);
  }
  taken(innermost_here);
  return true;
}

void Turn::unlock() {
  innermost_here = outer_;
  if (state_.exchange(free, std::memory_order_release) == waited_for) [[unlikely]]
    futex_wake(state_);
}

}  // namespace ringreduce

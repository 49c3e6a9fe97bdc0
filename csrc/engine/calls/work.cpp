#include "engine/calls/work.h"

#include <algorithm>

#include "transport/interface/errors.h"

namespace ringreduce {

bool Work::done() const {
  std::lock_guard lock(mutex_);
  return done_;
}

std::exception_ptr Work::exception() const {
  std::lock_guard lock(mutex_);
  return problem_;
}

bool Work::wait(std::optional<std::chrono::nanoseconds> timeout, const std::function<void()>& tick,
                std::chrono::nanoseconds every) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = timeout ? Clock::now() + *timeout : Clock::time_point::max();
  std::unique_lock lock(mutex_);
  while (!done_) {
    const auto now = Clock::now();
    if (now >= deadline) return false;
    over_->wait_until(lock, std::min(deadline, now + every), [this] { return done_; });
    if (done_) break;
    if (turn_ && Turn::is_held_here(turn_)) {
      throw Misplaced(
          "a signal handler waits for a call that cannot begin before the handler returns, because this "
          "thread is in another call of the group: wait for it after that call");
    }
    lock.unlock();
    tick();
    lock.lock();
  }
  if (problem_) std::rethrow_exception(problem_);
  return true;
}

void Work::wait_over() {
  std::unique_lock lock(mutex_);
  over_->wait(lock, [this] { return done_; });
}

void Work::then(std::function<void()> after) {
  {
    std::lock_guard lock(mutex_);
    if (!done_) {
      after_ = std::move(after);
      return;
    }
  }
  after();
}

void Work::finish(std::exception_ptr problem) {
  std::function<void()> after;
  {
    std::lock_guard lock(mutex_);
    if (done_) return;
    ended_.store(std::chrono::steady_clock::now(), std::memory_order_release);
    if (began() == Time()) begin(ended());
    done_ = true;
    problem_ = std::move(problem);
    after.swap(after_);
    over_->notify_all();
  }
  if (after) after();
}

}  // namespace ringreduce

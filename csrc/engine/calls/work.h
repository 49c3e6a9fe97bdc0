// The handle of a call that runs in the progress thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>

#include "engine/calls/turn.h"
#include "engine/calls/undestroyed.h"

namespace ringreduce {

class Work {
 public:
  // `turn`: that a collective takes when it begins.
  explicit Work(const Turn* turn = nullptr) : turn_(turn) {}

  bool done() const;
  // The error, if the call has failed.
  std::exception_ptr exception() const;
  // Waits until the call has finished, then rethrows its error. Returns false if the timeout passes first.
  // Meanwhile calls `tick` once per `every`, which may throw. Throws Misplaced if the call cannot begin
  // before this thread returns, because a signal handler waits for it in the middle of another call.
  bool wait(std::optional<std::chrono::nanoseconds> timeout, const std::function<void()>& tick,
            std::chrono::nanoseconds every = std::chrono::milliseconds(20));
  // Waits until the call has finished, whether or not it failed.
  void wait_over();
  // Calls `after` when the call has finished, in the thread that ends it, or at once if it has already
  // finished.
  void then(std::function<void()> after);
  void finish(std::exception_ptr problem);

  // When work on the call began, and when it ended; no time before that.
  using Time = std::chrono::steady_clock::time_point;
  Time began() const { return began_.load(std::memory_order_acquire); }
  Time ended() const { return ended_.load(std::memory_order_acquire); }
  void begin(Time now) { began_.store(now, std::memory_order_release); }

  // For a receive, the rank that the message came from, or -1 while unknown. For other calls -1.
  int source() const { return source_.load(std::memory_order_acquire); }
  void set_source(int rank) { source_.store(rank, std::memory_order_release); }

 private:
  const Turn* const turn_;
  mutable std::mutex mutex_;
  Undestroyed<std::condition_variable> over_;
  bool done_ = false;
  std::atomic<int> source_{-1};
  std::atomic<Time> began_{}, ended_{};
  std::exception_ptr problem_;
  std::function<void()> after_;
};

}  // namespace ringreduce

// The handle of a call that was handed to the progress thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>

#include "engine/undestroyed.h"

namespace ringreduce {

class Work {
 public:
  bool done() const;
  // What went wrong, if the call is over and has failed.
  std::exception_ptr exception() const;
  // Waits until the call is over, then rethrows what went wrong. False if the time was up first. `tick` is
  // called `every` so often meanwhile and may throw.
  bool wait(std::optional<std::chrono::nanoseconds> timeout, const std::function<void()>& tick,
            std::chrono::nanoseconds every = std::chrono::milliseconds(20));
  // Waits until the call is over, however it ended.
  void wait_over();
  // Calls `after` once it is over, in the thread that ends it; at once if it is over already.
  void then(std::function<void()> after);
  void finish(std::exception_ptr problem);

  // When it was first worked on, and when it was over; before that no time.
  using Time = std::chrono::steady_clock::time_point;
  Time began() const { return began_.load(std::memory_order_acquire); }
  Time ended() const { return ended_.load(std::memory_order_acquire); }
  void begin(Time now) { began_.store(now, std::memory_order_release); }

  // Of a receive: the rank that the message came from, or -1 while that is not known; of anything else -1.
  int source() const { return source_.load(std::memory_order_acquire); }
  void set_source(int rank) { source_.store(rank, std::memory_order_release); }

 private:
  mutable std::mutex mutex_;
  Undestroyed<std::condition_variable> over_;
  bool done_ = false;
  std::atomic<int> source_{-1};
  std::atomic<Time> began_{}, ended_{};
  std::exception_ptr problem_;
  std::function<void()> after_;
};

}  // namespace ringreduce

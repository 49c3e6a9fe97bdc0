// A lock that is held briefly and almost never wanted by two threads at once: one atomic operation to take
// it, none to release it. A thread that does not get it yields until it does.
#pragma once

#include <sched.h>

#include <atomic>

#include "transport/interface/wait.h"

namespace ringreduce {

class BriefLock {
 public:
  bool try_lock() { return !taken_.exchange(true, std::memory_order_acquire); }
  void lock() {
    if (try_lock()) return;
    constexpr int spins = 100;
    waiting_.fetch_add(1, std::memory_order_relaxed);
    for (int tries = 0; !try_lock(); ++tries) {
      while (taken_.load(std::memory_order_relaxed)) tries++ < spins ? relax() : void(sched_yield());
    }
    waiting_.fetch_sub(1, std::memory_order_relaxed);
  }
  void unlock() { taken_.store(false, std::memory_order_release); }
  // Whether another thread waits for it. A thread that takes it again and again must then let the other one
  // in.
  bool wanted() const { return waiting_.load(std::memory_order_relaxed) > 0; }

 private:
  std::atomic<bool> taken_{false};
  std::atomic<int> waiting_{0};
};

}  // namespace ringreduce

// A lock for what is held briefly and almost never by two threads at once: one atomic operation to take it, none
// to give it back. Whoever does not get it gives the core away until it does.
#pragma once

#include <sched.h>

#include <atomic>

#include "transport/wait.h"

namespace ringreduce {

class BriefLock {
 public:
  bool try_lock() { return !taken_.exchange(true, std::memory_order_acquire); }
  void lock() {
    constexpr int spins = 100;
    for (int tries = 0; !try_lock(); ++tries) {
      while (taken_.load(std::memory_order_relaxed)) tries++ < spins ? relax() : void(sched_yield());
    }
  }
  void unlock() { taken_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> taken_{false};
};

}  // namespace ringreduce

// A lock for what is held briefly and almost never by two threads at once: one atomic operation to take it,
// none to give it back. Whoever does not get it gives the core away until it does.
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
  // Whether somebody waits for it: whoever takes it again and again is then to let that one in between.
  bool wanted() const { return waiting_.load(std::memory_order_relaxed) > 0; }

 private:
  std::atomic<bool> taken_{false};
  std::atomic<int> waiting_{0};
};

}  // namespace ringreduce

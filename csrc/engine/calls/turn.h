// A lock whose holder may wait for other ranks, and so run the user's code: a signal handler.
#pragma once

#include <chrono>
#include <mutex>

namespace ringreduce {

// For std::unique_lock. Unlike a mutex, it can tell whether this thread already holds it, further up its
// stack. Waiting for it would then never end.
class Turn {
 public:
  void lock();
  bool try_lock();
  bool try_lock_for(std::chrono::milliseconds limit);
  void unlock();
  // Whether this thread holds it. Also for one that no longer exists: then false.
  static bool is_held_here(const Turn* turn);

 private:
  bool taken(bool locked);

  std::timed_mutex mutex_;
  Turn* outer_ = nullptr;  // that this thread took before
};

}  // namespace ringreduce

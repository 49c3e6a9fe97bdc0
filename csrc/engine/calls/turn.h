// A lock whose holder may wait for other ranks, and so run the user's code: a signal handler.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace ringreduce {

// For std::unique_lock. Unlike a mutex, it can tell whether this thread already holds it, further up its
// stack. Waiting for it would then never end. Every call takes it, in a third of a std::timed_mutex's
// instructions.
class Turn {
 public:
  void lock();
  bool try_lock();
  bool try_lock_for(std::chrono::milliseconds limit);
  void unlock();
  // Whether this thread holds it. Also for one that no longer exists: then false.
  static bool is_held_here(const Turn* turn);

 private:
  // waited_for: a thread may sleep until it is woken.
  enum State : std::uint32_t { free, held, waited_for };

  static bool is_among(const Turn* turn, const Turn* taken);
  void taken(Turn*& innermost);

  std::atomic<std::uint32_t> state_{free};
  Turn* outer_ = nullptr;  // that this thread took before
};

}  // namespace ringreduce

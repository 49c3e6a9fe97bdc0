// The MPI library of this process: who initialises and ends it, and which threads may call it.
#pragma once

#include <mpi.h>

#include <atomic>
#include <string>

#include "transport/interface/transport.h"
#include "transport/remote/brief_lock.h"

namespace ringreduce::mpi {

// Initialises MPI if needed. If this library initialised it, it also finalises it, at the end of the process.
// Throws Error if MPI has already been finalised.
void start();
// The checks of every call.
struct Access {
  std::atomic<bool> over{false};
  int level = MPI_THREAD_SINGLE;
  BriefLock turn;
};
inline constinit Access access;
// Whether MPI has ended, so that it must not be called.
inline bool over() {
  return access.over.load(std::memory_order_relaxed);
}
// Lets MPI end without the others, which may be dead.
void end_without_others();

// Registers a transport that must be closed before MPI ends.
void enter(Transport* user);
void leave(Transport* user);

// Whether this thread may call MPI, and whether all threads may.
inline bool any_thread_may_call() {
  return access.level >= MPI_THREAD_SERIALIZED;
}
bool this_thread_may_call();
inline bool may_call() {
  return any_thread_may_call() || this_thread_may_call();
}
// Throws InvalidArgument, because this thread may not.
[[noreturn]] void refuse();

// Whether MPI itself yields the core when it has nothing to do. The transport must then not yield too.
bool gives_core_away();

// Holds the right to call MPI. If only one thread at a time may call it, this is a lock of the whole process,
// which does not keep the program's own calls away.
class Turn {
 public:
  Turn() : Turn(taken_here_) {}
  // `held`: whether its owner already has the right; guarded by the owner's own lock.
  explicit Turn(bool& held) : held_(held || access.level != MPI_THREAD_SERIALIZED ? nullptr : &held) {
    if (!held_) return;
    access.turn.lock();
    held = true;
  }
  ~Turn() {
    if (!held_) return;
    *held_ = false;
    access.turn.unlock();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  bool taken_here_ = false;
  bool* const held_;  // null: nothing to release
};

std::string error_text(int code);
// Throws Error if an MPI function has failed.
void check(int code, const char* function);

}  // namespace ringreduce::mpi

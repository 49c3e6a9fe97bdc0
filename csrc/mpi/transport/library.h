// The MPI library of this process: who starts and who ends it, and from which threads it may be called.
#pragma once

#include <mpi.h>

#include <mutex>
#include <string>

#include "transport/interface/transport.h"

namespace ringreduce::mpi {

// Starts MPI if nobody has. Whoever starts it ends it: at the end of the process, if that was us. Throws
// Error where it is over already.
void start();
// Whether MPI has ended, so that nothing of it may be called.
bool over();
// Lets MPI end without a word to the others, who may be dead.
void end_without_others();

// A transport that is to be closed before MPI ends.
void enter(Transport* user);
void leave(Transport* user);

// Whether this thread may call MPI at all, and whether all may.
bool may_call();
bool any_thread_may_call();
// Throws InvalidArgument: it may not.
[[noreturn]] void refuse();

// Whether MPI itself gives the core away whenever it has nothing to do: then nobody else should, too.
bool gives_core_away();

// Holds the right to call MPI. Where it can be called by one thread at a time only, that is a lock of the
// whole process; it does not keep the program's own calls away.
class Turn {
 public:
  Turn() : Turn(taken_here_) {}
  // `held` says whether its owner has the right already, for which it needs a lock of its own.
  explicit Turn(bool& held);
  ~Turn();
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  bool taken_here_ = false;
  bool* const held_;  // null: nothing to give back
};

std::string error_text(int code);
// Throws Error if an MPI function has failed.
void check(int code, const char* function);

}  // namespace ringreduce::mpi

// The library's own threads.
#pragma once

#include <csignal>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "transport/interface/errors.h"

namespace ringreduce {

// The kernel gives a signal to any thread that does not block it, and wakes only that one. These threads
// block signals, so that Ctrl-C wakes a thread of the program. Faults of the thread itself are not blocked.
// Throws Error if there can be no more threads.
template <typename Run>
std::thread thread_without_signals(Run run) {
  struct Blocked {
    Blocked() {
      sigset_t most;
      sigfillset(&most);
      for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&most, fault);
      pthread_sigmask(SIG_BLOCK, &most, &before);
    }
    ~Blocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    sigset_t before;
  };
  const Blocked blocked;  // a thread inherits the signal mask of the one that starts it
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& refused) {
    throw Error(std::string("cannot start a thread: ") + refused.what() +
                "; the limits are those of the user (ulimit -u), of the container or the job's cgroup "
                "(pids.max), and of memory (ulimit -v)");
  }
}

}  // namespace ringreduce

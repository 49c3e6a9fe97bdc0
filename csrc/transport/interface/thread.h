// The library's own threads.
#pragma once

#include <csignal>
#include <thread>
#include <utility>

namespace ringreduce {

// The kernel gives a signal to any thread that does not block it, and wakes only that one. These threads
// block signals, so that Ctrl-C wakes a thread of the program. Faults of the thread itself are not blocked.
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
  return std::thread(std::move(run));
}

}  // namespace ringreduce

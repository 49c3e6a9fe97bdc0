// Threads of the library's own.
#pragma once

#include <csignal>
#include <thread>
#include <utility>

namespace ringreduce {

// A signal goes to any thread that takes it, and only ends the sleep of that one: these take none, so that
// Ctrl-C reaches a thread of the program's. Faults of the thread itself are not held back.
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
  const Blocked blocked;  // a thread begins with the signals of the one that starts it
  return std::thread(std::move(run));
}

}  // namespace ringreduce

// The library's own threads.
#pragma once

#include <csignal>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "transport/interface/errors.h"

namespace ringreduce {

// The kernel gives a signal to any thread that does not block it, and wakes only that one. Threads that are
// started in this object's lifetime block signals, so that Ctrl-C wakes a thread of the program: a thread
// inherits the signal mask of the one that starts it. Faults of the thread itself are not blocked.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t most;
    sigfillset(&most);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT}) sigdelset(&most, fault);
    pthread_sigmask(SIG_BLOCK, &most, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// The program keeps its signal handlers, whatever a library does that is loaded in this object's lifetime.
class HandlersKept {
 public:
  HandlersKept() {
    for (int signal = 1; signal < NSIG; ++signal)
      kept_[signal] = sigaction(signal, nullptr, &before_[signal]) == 0;
  }
  ~HandlersKept() {
    for (int signal = 1; signal < NSIG; ++signal) {
      if (kept_[signal]) sigaction(signal, &before_[signal], nullptr);
    }
  }
  HandlersKept(const HandlersKept&) = delete;
  HandlersKept& operator=(const HandlersKept&) = delete;

 private:
  struct sigaction before_[NSIG] = {};
  bool kept_[NSIG] = {};
};

// Throws Error if there can be no more threads.
template <typename Run>
std::thread thread_without_signals(Run run) {
  const SignalsBlocked blocked;
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& refused) {
    throw Error(std::string("cannot start a thread: ") + refused.what() +
                "; the limits are those of the user (ulimit -u), of the container or the job's cgroup "
                "(pids.max), and of memory (ulimit -v)");
  }
}

// In the child of a fork, for a thread of the parent. The C library may have freed the memory that the handle
// points to, or have given it to a thread of the child. So nothing may use the handle, not even detach().
inline void abandon(std::thread& thread) {
  std::construct_at(&thread);
}

}  // namespace ringreduce

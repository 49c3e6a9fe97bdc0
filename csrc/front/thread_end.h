// Threads that outlive Python. Up to version 3.13, Python ends a thread that takes the GIL while the
// interpreter finalises: pthread_exit() unwinds its stack, and the first destructor or catch-all of C++ on it
// aborts the process. Such threads stay where they are instead, for the little time that is left.
#pragma once

#include <cxxabi.h>
#include <unistd.h>

#include <utility>

namespace ringreduce {

[[noreturn]] inline void stay() {
  while (true) pause();
}

// Calls a function that may take the GIL, by itself or in the Python code that it runs. It must not hold
// anything that has to be released.
template <typename Function>
decltype(auto) or_stay(Function&& function) {
  try {
    return std::forward<Function>(function)();
  } catch (const abi::__forced_unwind&) {
    stay();
  }
}

}  // namespace ringreduce

// Threads that outlive Python. Up to version 3.13, Python ends a thread that takes the GIL while the
// interpreter finalises: pthread_exit() unwinds its stack, and the first destructor or catch-all of C++ on it
// aborts the process. Such threads stay where they are instead, for the little time that is left.
#pragma once

#include <unistd.h>

#include <exception>
#include <type_traits>
#include <utility>

namespace ringreduce {

[[noreturn]] inline void stay() {
  while (true) pause();
}

// Stays in its destructor if no exception of C++ ends its scope before over(). To catch pthread_exit()
// instead would abort the process inside a handler of another exception.
class Staying {
 public:
  Staying() = default;
  ~Staying() {
    if (!over_ && std::uncaught_exceptions() == before_) stay();
  }
  Staying(const Staying&) = delete;
  Staying& operator=(const Staying&) = delete;
  void over() { over_ = true; }

 private:
  const int before_ = std::uncaught_exceptions();
  bool over_ = false;
};

// Calls a function that may take the GIL, by itself or in the Python code that it runs. It must not hold
// anything that has to be released.
template <typename Function>
auto or_stay(Function&& function) {
  Staying staying;
  if constexpr (std::is_void_v<std::invoke_result_t<Function>>) {
    std::forward<Function>(function)();
    staying.over();
  } else {
    auto result = std::forward<Function>(function)();
    staying.over();
    return result;
  }
}

}  // namespace ringreduce

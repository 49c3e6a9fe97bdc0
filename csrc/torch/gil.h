// Gives the GIL away for a while, if this thread has it.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <atomic>
#include <optional>

namespace ringreduce::torch_backend {

class WithoutGil {
 public:
  WithoutGil() {
    if (Py_IsInitialized() && PyGILState_Check()) released_.emplace();
  }

 private:
  std::optional<pybind11::gil_scoped_release> released_;
};

inline std::atomic<bool> ending{false};  // Python is

// Threads that come back from a wait when Python ends must not come back to Python, which would take them
// down in the middle of a destructor: other threads than the main one stay here then, for the little time
// that is left.
inline void stay_if_ending() {
  if (!ending.load(std::memory_order_relaxed) || gettid() == getpid()) return;
  while (true) pause();
}

}  // namespace ringreduce::torch_backend

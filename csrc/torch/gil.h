// Releases the GIL for a while, if this thread holds it.
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

inline std::atomic<bool> ending{false};  // whether Python is ending

// Threads that return from a wait while Python ends must not return to Python, which would end them in the
// middle of a destructor. Threads other than the main one stay here for the little time that is left.
inline void stay_if_ending() {
  if (!ending.load(std::memory_order_relaxed) || gettid() == getpid()) return;
  while (true) pause();
}

}  // namespace ringreduce::torch_backend

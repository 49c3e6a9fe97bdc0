// Gives the GIL away for a while, if this thread has it.
#pragma once

#include <pybind11/pybind11.h>

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

// Says that Python is about to end.
void begin_ending();

// Threads that come back from a wait when Python ends must not come back to Python, which would take them
// down in the middle of a destructor: other threads than the main one stay here then, for the little time
// that is left.
void stay_if_ending();

}  // namespace ringreduce::torch_backend

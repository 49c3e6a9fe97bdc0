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

}  // namespace ringreduce::torch_backend

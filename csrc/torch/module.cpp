// What Python sees of the backend: how to make one. All else goes through torch's own bindings.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include "torch/backend.h"
#include "torch/callbacks.h"
#include "torch/gil.h"

namespace py = pybind11;

namespace ringreduce::torch_backend {
namespace {

intrusive_ptr<c10d::Backend> create(const intrusive_ptr<c10d::Store>& store, int rank, int size,
                                    Milliseconds timeout, GlobalRanks ranks, std::optional<bool> reproducible,
                                    bool connected) {
  return c10::make_intrusive<RingBackend>(store, rank, size,
                                          Settings{timeout, std::move(ranks), reproducible, connected});
}

}  // namespace

PYBIND11_MODULE(RINGREDUCE_TORCH_MODULE, m) {
  m.doc() = "The torch.distributed backend.";
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  m.def("create", create, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"),
        py::arg("global_ranks"), py::arg("reproducible"), py::arg("connected"), unlocked);
  m.def("begin_ending", begin_ending);
  m.def("finish_callbacks", finish_callbacks, py::arg("milliseconds"), unlocked);
}

}  // namespace ringreduce::torch_backend

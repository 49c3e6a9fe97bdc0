// How Python makes a backend. Everything else goes through torch's own bindings.
#include <pybind11/chrono.h>
#include <torch/csrc/utils/pybind.h>

#include "fronts/torch/allocator.h"
#include "fronts/torch/backend.h"
#include "fronts/torch/callbacks.h"
#include "fronts/torch/gil.h"

namespace py = pybind11;

namespace ringreduce::torch_backend {
namespace {

constexpr int as_torchs_high_priority = -1;

intrusive_ptr<c10d::Backend> create(const intrusive_ptr<c10d::Store>& store, int rank, int size,
                                    Milliseconds timeout, GlobalRanks ranks, std::optional<bool> reproducible,
                                    bool connected, std::optional<int> max_blocks, bool high_priority,
                                    std::string name) {
  const int blocks = max_blocks.value_or(0);
  return c10::make_intrusive<RingBackend>(
      store, rank, size,
      Settings{timeout, std::move(ranks), reproducible, connected,
               GpuOptions{blocks, blocks, max_blocks == 0, high_priority ? as_torchs_high_priority : 0},
               std::move(name)});
}

// The backend's Python class, with the methods that torch.distributed calls on a backend that supports
// splitting.
void bind_backend(py::module_& m) {
  py::module_::import("torch._C._distributed_c10d");
  py::class_<RingOptions, c10d::Backend::Options, intrusive_ptr<RingOptions>>(m, "Options")
      .def_readwrite("reproducible", &RingOptions::reproducible)
      .def_property(
          "max_blocks",
          [](const RingOptions& options) {
            const bool is_set = options.gpu.max_blocks > 0 || options.gpu.copy_engine;
            return is_set ? std::optional(options.gpu.max_blocks) : std::nullopt;
          },
          [](RingOptions& options, std::optional<int> blocks) {
            options.gpu.min_blocks = options.gpu.max_blocks = blocks.value_or(0);
            options.gpu.copy_engine = blocks == 0;
          })
      .def_property(
          "is_high_priority_stream", [](const RingOptions& options) { return options.gpu.priority < 0; },
          [](RingOptions& options, bool high) { options.gpu.priority = high ? as_torchs_high_priority : 0; })
      .def("__deepcopy__", [](const RingOptions& options, const py::dict&) {
        return c10::make_intrusive<RingOptions>(options);
      });
  py::class_<RingBackend, c10d::Backend, intrusive_ptr<RingBackend>>(m, "Backend")
      .def_property_readonly("options", &RingBackend::getBackendOptions)
      .def("comm_split_count", &RingBackend::splits)
      .def("register", &RingBackend::registerTensor, py::arg("tensor"))
      .def("deregister", &RingBackend::deregisterTensor, py::arg("tensor"))
      // The members of a new group meet in the store. Other ranks have nothing to do.
      .def(
          "perform_nocolor_split", [](const RingBackend&, const py::object&) {}, py::arg("device"))
      .def("_set_default_timeout", &RingBackend::setTimeout, py::arg("timeout"));
}

}  // namespace

PYBIND11_MODULE(RINGREDUCE_TORCH_MODULE, m, py::mod_gil_not_used()) {
  m.doc() = "The torch.distributed backend.";
  const auto unlocked = py::call_guard<WithoutGil>();
  bind_backend(m);
  m.def("create", create, py::arg("store"), py::arg("rank"), py::arg("size"), py::arg("timeout"),
        py::arg("global_ranks"), py::arg("reproducible"), py::arg("connected"),
        py::arg("max_blocks") = std::nullopt, py::arg("high_priority") = false,
        py::arg("name") = "ringreduce", unlocked);
  m.def("allocate_tensors", allocate_tensors);
  m.def(
      "end",
      [](bool at_once) {
        ending = true;
        leave_all_groups(at_once);
        finish_callbacks(raise_if_interrupted);
      },
      py::arg("at_once"), unlocked);
}

}  // namespace ringreduce::torch_backend

// What tests have of it beside tensors: streams by their numbers.
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "gpu/device/cuda/entry_points.h"
#include "streams.h"

namespace ringreduce::emulated_torch {
namespace {

const c10::impl::VirtualGuardImpl& guard() {
  static const c10::impl::VirtualGuardImpl made(c10::kCUDA);
  return made;
}

c10::Stream stream_of(c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, guard().getDevice(), id);
}

void let_wait(c10::StreamId waiter, c10::StreamId waited_for) {
  c10::Event event(c10::kCUDA);
  event.record(stream_of(waited_for));
  event.block(stream_of(waiter));
}

c10::StreamId use_stream(c10::StreamId id) {
  return guard().exchangeStream(stream_of(id)).id();
}

constexpr int global = 0;  // as torch.cuda.graph has it, unless it is told otherwise

std::uintptr_t captured(const std::function<void()>& what) {
  void* const stream = handle_of(current_stream(guard().getDevice()));
  void* graph = nullptr;
  check(ringreduce_cuda_begin_capture(stream, global));
  what();
  check(ringreduce_cuda_end_capture(&graph, stream));
  return reinterpret_cast<std::uintptr_t>(graph);
}

void replay(std::uintptr_t graph) {
  void* const stream = handle_of(current_stream(guard().getDevice()));
  check(ringreduce_cuda_launch_graph(reinterpret_cast<void*>(graph), stream));
}

}  // namespace

PYBIND11_MODULE(emulated_cuda, m) {
  pybind11::class_<c10::Event>(m, "Event")
      .def(pybind11::init([] { return std::make_unique<c10::Event>(c10::kCUDA); }))
      .def("record", [](c10::Event& event, c10::StreamId id) { event.record(stream_of(id)); })
      .def("let_wait", [](c10::Event& event, c10::StreamId id) { event.block(stream_of(id)); })
      .def("query", [](const c10::Event& event) { return event.query(); })
      .def("synchronize", [](const c10::Event& event) { event.synchronize(); });
  m.def("new_stream", [] { return new_stream(guard().getDevice()).id(); });
  m.def("current_stream", [] { return current_stream(guard().getDevice()).id(); });
  m.def("use_stream", use_stream, "Makes it the thread's current one, and returns what was.");
  m.def("let_wait", let_wait, "What comes on the first stream waits for what is on the second.");
  m.def("handle_of",
        [](c10::StreamId id) { return reinterpret_cast<std::uintptr_t>(handle_of(stream_of(id))); });
  m.def("captured", captured, "The graph of what the function launches on the current stream.");
  m.def("replay", replay);
  m.def("take_records", take_records);
}

}  // namespace ringreduce::emulated_torch

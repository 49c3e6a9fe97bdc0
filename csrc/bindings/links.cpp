// What the links between hosts are worth, for Python.
#include "engine/planning/links.h"

#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "transport/interface/errors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ringreduce {
namespace {

Links make(int world, std::vector<double> latency, std::vector<double> bandwidth) {
  const std::size_t pairs = static_cast<std::size_t>(world) * static_cast<std::size_t>(world);
  if (world < 0 || latency.size() != pairs || bandwidth.size() != pairs) {
    throw InvalidArgument("latency and bandwidth must have an entry for each pair of ranks");
  }
  Links links;
  links.world = world;
  links.latency = std::move(latency);
  links.bandwidth = std::move(bandwidth);
  return links;
}

}  // namespace

void bind_links(nb::module_& m) {
  nb::class_<Links>(m, "Links", "Measured links; 0 where nothing was measured.")
      .def_ro("world", &Links::world)
      .def_ro("latency", &Links::latency, "Seconds one way, by from * world + to.")
      .def_ro("bandwidth", &Links::bandwidth, "Bytes a second, by from * world + to.")
      .def("ring_order", &ring_order, "hosts"_a = std::vector<int>())
      .def("pace", &pace);
  m.def("make_links", make, "world"_a, "latency"_a, "bandwidth"_a);
}

}  // namespace ringreduce

// Measured links between hosts, for Python.
#include "engine/planning/links.h"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "engine/planning/network.h"
#include "fronts/python/bindings.h"
#include "transport/interface/errors.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ringreduce {
namespace {

using LinkRow = std::tuple<int, int, double, double>;

std::tuple<int, std::vector<int>, std::vector<LinkRow>> network(const Links& links,
                                                                const std::vector<int>& hosts) {
  const Network made = network_of(links, hosts);
  std::vector<LinkRow> rows;
  for (const Link& link : made.links) rows.emplace_back(link.from, link.to, link.rate, link.latency);
  return {made.nodes, made.node_of, rows};
}

Links make(int world, std::vector<double> latency, std::vector<double> bandwidth,
           std::vector<double> together) {
  const std::size_t pairs = static_cast<std::size_t>(world) * static_cast<std::size_t>(world);
  if (world < 0 || latency.size() != pairs || bandwidth.size() != pairs ||
      (!together.empty() && together.size() != pairs)) {
    throw InvalidArgument("latency, bandwidth and together must have an entry for each pair of ranks");
  }
  Links links;
  links.world = world;
  links.latency = std::move(latency);
  links.bandwidth = std::move(bandwidth);
  links.together = std::move(together);
  return links;
}

}  // namespace

void bind_links(nb::module_& m) {
  nb::class_<Links>(m, "Links", "Measured links between ranks; 0 for pairs that were not measured.")
      .def_ro("world", &Links::world)
      .def_ro("latency", &Links::latency, "Seconds one way, indexed by from * world + to.")
      .def_ro("together", &Links::together,
              "Bytes per second while all pairs of a round send at once, indexed by from * world + to.")
      .def_ro("bandwidth", &Links::bandwidth, "Bytes per second, indexed by from * world + to.")
      .def("network", network, "hosts"_a = std::vector<int>(),
           "Returns the links as a network: (nodes, node_of, links).")
      .def("ring_order", &ring_order, "hosts"_a = std::vector<int>())
      .def("pace", &pace);
  m.def("make_links", make, "world"_a, "latency"_a, "bandwidth"_a, "together"_a = std::vector<double>());
}

}  // namespace ringreduce

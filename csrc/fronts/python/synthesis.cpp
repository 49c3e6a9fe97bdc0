#include "synthesis/synthesis.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "fronts/python/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ringreduce {
namespace {

using Trees = std::vector<std::vector<int>>;
using LinkRow = std::tuple<int, int, double, double>;
using WayRow = std::tuple<std::string_view, std::size_t, int, int, double>;

Synthesis make(int nodes, const std::vector<int>& node_of, const std::vector<LinkRow>& links,
               const std::vector<int>& groups) {
  Network network{nodes, node_of, std::vector<int>(nodes), {}, {}, 0, {}};
  for (const auto& [from, to, rate, latency] : links) network.links.push_back({from, to, rate, latency});
  const WithoutGil unlocked;
  return Synthesis(std::move(network), groups, {});
}

std::vector<std::tuple<Trees, double>> forests(const Synthesis& synthesis) {
  std::vector<std::tuple<Trees, double>> rows;
  for (std::size_t i = 0; i < synthesis.packing().forests.size(); ++i)
    rows.emplace_back(synthesis.place(0, static_cast<int>(i)).trees, synthesis.packing().forests[i].rate);
  return rows;
}

std::vector<LinkRow> links(const Synthesis& synthesis) {
  std::vector<LinkRow> rows;
  for (const Link& link : synthesis.network().links)
    rows.emplace_back(link.from, link.to, link.rate, link.latency);
  return rows;
}

WayRow fastest(const Synthesis& synthesis, std::size_t bytes, std::string_view algorithm,
               std::size_t slice_bytes, int lanes) {
  const WithoutGil unlocked;
  const Way way = synthesis.fastest(bytes, {algorithm, slice_bytes, lanes});
  return {way.algorithm, way.slice_bytes, way.lanes, way.forest, way.seconds};
}

}  // namespace

void bind_synthesis(nb::module_& m) {
  nb::class_<Synthesis>(m, "Synthesis", "All-reduce algorithms synthesised for a network.")
      .def_prop_ro("forests", forests, "Rows of (trees by rank, the bytes per second that they carry).")
      .def_prop_ro("bound", [](const Synthesis& synthesis) { return synthesis.packing().bound; })
      .def_prop_ro("limits", [](const Synthesis& synthesis) { return synthesis.packing().limits; })
      .def_prop_ro("seconds", &Synthesis::seconds)
      .def_prop_ro("nodes", [](const Synthesis& synthesis) { return synthesis.network().nodes; })
      .def_prop_ro("links", links, "Rows of (from node, to node, bytes per second, seconds).")
      .def("fastest", fastest, "bytes"_a, "algorithm"_a, "slice_bytes"_a, "lanes"_a,
           "Returns the fastest way to all-reduce that many bytes, as (algorithm, slice_bytes, lanes, "
           "forest, predicted seconds). The other arguments describe the usual choice, which is returned if "
           "nothing is faster.");
  m.def("make_synthesis", make, nb::kw_only(), "nodes"_a, "node_of"_a, "links"_a, "groups"_a);
}

}  // namespace ringreduce

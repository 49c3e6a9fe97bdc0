// Functions for benchmarks and the command line that need no communicator.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include "engine/planning/links.h"
#include "engine/planning/planner.h"
#include "fronts/python/bindings.h"
#include "fronts/python/schedule_caster.h"
#include "reduce/line_taker.h"
#include "transport/interface/cores.h"
#include "transport/memory/probe.h"
#include "transport/memory/rewriting.h"
#include "transport/tcp/checksum.h"
#include "transport/tcp/stream.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ringreduce {
namespace {

// The algorithm that a communicator of that many ranks would pick. `oversubscribed`: whether ranks outnumber
// cores; `latency`, `bandwidth`: of the links between hosts, 0 if unknown; `coded`: whether values travel in
// a wire format.
std::tuple<std::string, std::size_t, int, std::string> choice_for(
    const std::string& collective, std::size_t bytes, int world, const std::string& transport,
    std::optional<bool> oversubscribed, double latency, double bandwidth, bool coded) {
  const Target there{.tuning = tuning_of(transport),
                     .oversubscribed = oversubscribed.value_or(world > usable_cores().count())};
  Planner planner(0, world, there, reproducible_by_environment(), {}, tuned_rows());
  planner.know({}, {.world = 1, .latency = {latency}, .bandwidth = {bandwidth}, .together = {}});
  const auto [choice, reason] =
      planner.explain(collective_named(collective), bytes, coded ? Encoding::bf16 : Encoding::none);
  return {std::string(choice.entry->name), choice.slice_bytes, choice.lanes, reason};
}

std::uint32_t checksum(const nb::bytes& data, std::uint32_t before, bool by_table) {
  return (by_table ? crc32c_by_table : crc32c)(before, data.c_str(), data.size());
}

}  // namespace

void bind_measuring(nb::module_& m) {
  m.def("choose", choice_for, "collective"_a, "bytes"_a, "world"_a, "transport"_a = "shm",
        "oversubscribed"_a = nb::none(), "latency"_a = 0.0, "bandwidth"_a = 0.0, "coded"_a = false,
        "Returns the algorithm that \"auto\" picks: (algorithm, slice bytes, slices in flight, reason). "
        "oversubscribed: whether ranks outnumber cores; None: as on this host. latency, bandwidth: of the "
        "links between hosts, in seconds and bytes per second; 0: unknown. coded: whether values travel in a "
        "wire "
        "format.");
  m.def("tuning_file", tuning_file,
        "Returns the path of the tuning table of this machine; empty if there is no cache folder.");
  m.def(
      "take_lines_from",
      [](double nanoseconds) {
        Rewriting::call_slow_from(nanoseconds);
        return LineTaker::lines_taken();
      },
      "nanoseconds"_a,
      "For tests: readers take over the lines that their owners rewrite no faster than this. Returns how "
      "many lines "
      "this process has taken.");
  m.def(
      "build_name", [] { return std::string(this_build().name); },
      "Returns the version and the protocol, which ranks compare when they meet.");
  m.def(
      "usable_cores", [] { return usable_cores().count(); },
      "Returns the number of cores that this process may use: no more than the container's limit.");
  m.def(
      "core_quota", [] { return usable_cores().quota; },
      "Returns the container's limit in cores, rounded up; 0 if there is none.");
  m.def("crc32c", checksum, "data"_a, "before"_a = 0, "by_table"_a = false,
        "Returns the CRC-32C of data, continuing from `before`, the checksum of the bytes in front of it.");
  m.def(
      "probe_exchange", probe_exchange, nb::call_guard<WithoutGil>(),
      "Returns the nanoseconds that a flag takes from core to core, one way; None if it cannot be measured.");
}

}  // namespace ringreduce

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "fronts/python/bindings.h"
#include "fronts/python/schedule_caster.h"
#include "schedule/catalogue.h"
#include "simulate/simulator.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ringreduce {
namespace {

using LinkRow = std::tuple<int, int, double, double>;
using CostRow = std::array<double, 7>;
using IntervalRow = std::tuple<std::string_view, int, int, int, int, double, double>;

std::vector<MessageCost> costs_of(const std::vector<CostRow>& rows) {
  std::vector<MessageCost> costs;
  for (const auto& [up_to, send, receive, send_byte, receive_byte, combine_byte, latency] : rows)
    costs.push_back({up_to, send, receive, send_byte, receive_byte, combine_byte, latency});
  return costs;
}

nb::dict to_python(const Answer& answer) {
  std::vector<IntervalRow> intervals;
  for (const Interval& each : answer.intervals)
    intervals.emplace_back(activity_names[static_cast<std::size_t>(each.activity)], each.where, each.peer,
                           each.round, each.slice, each.begin, each.end);
  nb::dict made_of;
  for (std::size_t component = 0; component < component_count; ++component)
    made_of[nb::cast(component_names[component])] = answer.end.made_of[component];
  nb::dict found;
  found["seconds"] = answer.end.at;
  found["made_of"] = made_of;
  found["simulated"] = answer.simulated;
  found["slices"] = answer.slices;
  found["simulated_slices"] = answer.simulated_slices;
  found["rounds"] = answer.rounds;
  found["messages"] = answer.messages;
  found["ended"] = answer.ended;
  found["busy_ranks"] = answer.busy_ranks;
  found["busy_links"] = answer.busy_links;
  found["intervals"] = intervals;
  return found;
}

nb::dict simulate_python(int nodes, const std::vector<int>& node_of, const std::vector<int>& cores,
                         const std::vector<double>& slowness, const std::vector<LinkRow>& links, int period,
                         const std::vector<int>& turned, double bytes, double slice_bytes, int lanes,
                         double round, double switching, const std::vector<CostRow>& inside,
                         const std::vector<CostRow>& between, double jitter, std::uint64_t seed,
                         const std::vector<double>& late, std::size_t most_messages, std::size_t intervals,
                         const std::string& collective, const std::string& algorithm, int root,
                         const std::vector<int>& groups, const std::vector<int>& order,
                         const std::optional<nb::callable>& schedule_of,
                         const std::vector<std::vector<int>>& trees) {
  Network network{nodes, node_of, cores, slowness, {}, period, turned};
  for (const auto& [from, to, rate, latency] : links) network.links.push_back({from, to, rate, latency});
  const Question question{
      bytes,  slice_bytes, lanes, round,         switching, costs_of(inside), costs_of(between),
      jitter, seed,        late,  most_messages, intervals};
  if (schedule_of) {
    const auto of_python = [&](int rank) { return schedule_from_python((*schedule_of)(rank)); };
    return to_python(simulate(network, of_python, question));
  }
  const Collective kind = collective_named(collective);
  Place place{network.world(), 0, root, groups, order, trees};
  const auto of_catalogue = [&](int rank) {
    place.rank = rank;
    return make_schedule(kind, algorithm, place);
  };
  Answer answer;
  {
    const WithoutGil unlocked;
    answer = simulate(network, of_catalogue, question);
  }
  return to_python(answer);
}

}  // namespace

void bind_simulate(nb::module_& m) {
  nb::module_ s =
      m.def_submodule("simulation", "The simulator, which times schedules on described networks.");
  s.def("simulate", simulate_python, nb::kw_only(), "nodes"_a, "node_of"_a, "cores"_a, "slowness"_a,
        "links"_a, "period"_a, "turned"_a, "bytes"_a, "slice_bytes"_a, "lanes"_a, "round"_a, "switching"_a,
        "inside"_a, "between"_a, "jitter"_a, "seed"_a, "late"_a, "most_messages"_a, "intervals"_a,
        "collective"_a, "algorithm"_a, "root"_a, "groups"_a, "order"_a, "schedule_of"_a = nb::none(),
        "trees"_a = std::vector<std::vector<int>>(),
        "Simulates one collective. The arguments are those of csrc/simulate/simulator.h. links: rows of "
        "(from, to, rate, latency); inside, between: rows of (up_to, send, receive, send_byte, receive_byte, "
        "combine_byte, latency); schedule_of: a function from rank to schedule, instead of an algorithm of "
        "the catalogue.");
}

}  // namespace ringreduce

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "fronts/python/bindings.h"
#include "fronts/python/schedule_caster.h"
#include "schedule/catalogue.h"
#include "schedule/check.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ringreduce {
namespace {

using Trees = std::vector<std::vector<int>>;

Schedule build(const std::string& collective, const std::string& algorithm, int world, int rank, int root,
               const std::vector<int>& groups, const std::vector<int>& order, const Trees& trees) {
  return make_schedule(collective_named(collective), algorithm, {world, rank, root, groups, order, trees});
}

std::vector<std::tuple<std::string_view, bool, std::string_view, std::string_view, int, bool>>
list_collectives() {
  constexpr std::string_view held[] = {"nothing",   "whole",     "on_root",   "own_block",
                                       "exchanged", "up_to_own", "before_own"};
  decltype(list_collectives()) rows;
  for (const CollectiveFacts& facts : collective_facts) {
    rows.emplace_back(facts.name, facts.reduces, held[static_cast<int>(facts.before)],
                      held[static_cast<int>(facts.after)], facts.bus == BusBytes::twice_others ? 2 : 1,
                      facts.bus != BusBytes::once);
  }
  return rows;
}

std::vector<std::tuple<std::string, std::string_view, std::string_view, std::string_view, std::string_view,
                       std::string_view, std::string_view>>
list_catalogue() {
  decltype(list_catalogue()) rows;
  for (const Entry& entry : catalogue()) {
    rows.emplace_back(name_of(entry.collective), entry.name, entry.rounds, entry.bytes, entry.restrictions,
                      entry.source, name_of(entry.order));
  }
  return rows;
}

// Converts here and not in the caster, so that errors name the wrong attribute instead of "incompatible".
std::vector<Schedule> all_from_python(const nb::iterable& schedules) {
  std::vector<Schedule> all;
  for (const nb::handle schedule : schedules) all.push_back(schedule_from_python(schedule));
  return all;
}

std::string check_python(const nb::iterable& schedules) {
  const std::vector<Schedule> all = all_from_python(schedules);
  const WithoutGil unlocked;
  return check(all);
}

std::string_view order_of_python(const nb::iterable& schedules) {
  const std::vector<Schedule> all = all_from_python(schedules);
  const WithoutGil unlocked;
  return name_of(order_of(all));
}

std::tuple<int, double, double> cost_of(const Schedule& schedule) {
  const Cost one = cost(schedule);
  return {one.rounds, one.sent, one.received};
}

// The largest of each number over all ranks.
std::tuple<int, double, double> cost_of_all(const std::vector<Schedule>& schedules) {
  std::tuple<int, double, double> worst;
  for (const Schedule& schedule : schedules) {
    const auto& [rounds, sent, received] = cost_of(schedule);
    worst = {std::max(std::get<0>(worst), rounds), std::max(std::get<1>(worst), sent),
             std::max(std::get<2>(worst), received)};
  }
  return worst;
}

// Defines a function over all ranks' schedules of an algorithm, which are not made in Python.
template <class Answer>
void define_for_all(nb::module_& m, const char* name, Answer answer, const char* words) {
  const auto answered = [answer](const std::string& collective, const std::string& algorithm, int world,
                                 int root, const std::vector<int>& groups, const std::vector<int>& order,
                                 const Trees& trees) {
    std::vector<Schedule> all;
    for (int rank = 0; rank < std::max(world, 1); ++rank)  // rank 0's build refuses an empty world
      all.push_back(build(collective, algorithm, world, rank, root, groups, order, trees));
    return answer(all);
  };
  m.def(name, answered, "collective"_a, "algorithm"_a, "world"_a, "root"_a = 0,
        "groups"_a = std::vector<int>(), "order"_a = std::vector<int>(), "trees"_a = Trees(),
        nb::call_guard<WithoutGil>(), words);
}

}  // namespace

void bind_schedule(nb::module_& m) {
  nb::module_ s = m.def_submodule("schedules", "Schedules: building, checking and counting them.");
  s.def("collectives", list_collectives,
        "Returns (name, reduces, before, after, bus_times, bus_of_others) for every collective.");
  s.def("catalogue", list_catalogue,
        "Returns (collective, name, rounds, bytes, restrictions, source, order) for every "
        "algorithm.");
  s.def("build", build, "collective"_a, "algorithm"_a, "world"_a, "rank"_a, "root"_a = 0,
        "groups"_a = std::vector<int>(), "order"_a = std::vector<int>(), "trees"_a = Trees(),
        "Returns one rank's schedule.");
  s.def("check", check_python, "schedules"_a,
        "Checks all ranks' schedules together. Returns the first error found, or ''.");
  define_for_all(s, "check_algorithm", check, "Returns check() of an algorithm's schedules.");
  s.def("order_of", order_of_python, "schedules"_a,
        "Returns how all ranks' schedules combine values: \"any\", \"kept\" in rank order, or \"at_once\" in "
        "it.");
  define_for_all(
      s, "algorithm_order", [](const std::vector<Schedule>& all) { return name_of(order_of(all)); },
      "Returns order_of() an algorithm's schedules.");
  s.def(
      "cost", [](nb::handle schedule) { return cost_of(schedule_from_python(schedule)); }, "schedule"_a,
      "Returns (rounds, sent, received); sent and received in units of the whole buffer.");
  define_for_all(s, "algorithm_cost", cost_of_all,
                 "Returns the maximum over all ranks of each number of cost().");
  s.def(
      "describe", [](nb::handle schedule) { return describe(schedule_from_python(schedule)); }, "schedule"_a,
      "Returns the schedule in words, one line per round.");
}

}  // namespace ringreduce

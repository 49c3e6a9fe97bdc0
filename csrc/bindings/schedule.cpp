#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bindings/bindings.h"
#include "bindings/schedule_caster.h"
#include "schedule/catalogue.h"
#include "schedule/check.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ringreduce {
namespace {

Schedule build(const std::string& collective, const std::string& algorithm, int world, int rank, int root,
               const std::vector<int>& groups, const std::vector<int>& order) {
  return make_schedule(collective_named(collective), algorithm, {world, rank, root, groups, order});
}

std::vector<Schedule> build_all(const std::string& collective, const std::string& algorithm, int world,
                                int root, const std::vector<int>& groups, const std::vector<int>& order) {
  std::vector<Schedule> all = {build(collective, algorithm, world, 0, root, groups, order)};
  for (int rank = 1; rank < world; ++rank)
    all.push_back(build(collective, algorithm, world, rank, root, groups, order));
  return all;
}

std::vector<std::tuple<std::string, std::string_view, std::string_view, std::string_view, std::string_view,
                       std::string_view, bool>>
list_catalogue() {
  decltype(list_catalogue()) rows;
  for (const Entry& entry : catalogue()) {
    rows.emplace_back(name_of(entry.collective), entry.name, entry.rounds, entry.bytes, entry.restrictions,
                      entry.source, entry.keeps_rank_order);
  }
  return rows;
}

// Taken apart here and not by the caster, so that a wrong attribute is named and not just "incompatible".
std::vector<Schedule> all_from_python(const nb::iterable& schedules) {
  std::vector<Schedule> all;
  for (const nb::handle schedule : schedules) all.push_back(schedule_from_python(schedule));
  return all;
}

std::string check_python(const nb::iterable& schedules) {
  const std::vector<Schedule> all = all_from_python(schedules);
  const nb::gil_scoped_release unlocked;
  return check(all);
}

bool keeps_rank_order_python(const nb::iterable& schedules) {
  const std::vector<Schedule> all = all_from_python(schedules);
  const nb::gil_scoped_release unlocked;
  return keeps_rank_order(all);
}

std::tuple<int, double, double> cost_of(const Schedule& schedule) {
  const Cost one = cost(schedule);
  return {one.rounds, one.sent, one.received};
}

// The largest of each over all ranks.
std::tuple<int, double, double> algorithm_cost(const std::string& collective, const std::string& algorithm,
                                               int world, int root, const std::vector<int>& groups,
                                               const std::vector<int>& order) {
  std::tuple<int, double, double> worst;
  for (const Schedule& schedule : build_all(collective, algorithm, world, root, groups, order)) {
    const auto& [rounds, sent, received] = cost_of(schedule);
    worst = {std::max(std::get<0>(worst), rounds), std::max(std::get<1>(worst), sent),
             std::max(std::get<2>(worst), received)};
  }
  return worst;
}

std::string check_algorithm(const std::string& collective, const std::string& algorithm, int world, int root,
                            const std::vector<int>& groups, const std::vector<int>& order) {
  return check(build_all(collective, algorithm, world, root, groups, order));
}

bool algorithm_keeps_rank_order(const std::string& collective, const std::string& algorithm, int world,
                                int root, const std::vector<int>& groups, const std::vector<int>& order) {
  return keeps_rank_order(build_all(collective, algorithm, world, root, groups, order));
}

}  // namespace

void bind_schedule(nb::module_& m) {
  nb::module_ s = m.def_submodule("schedules", "Schedules: building, checking and counting them.");
  const auto unlocked = nb::call_guard<nb::gil_scoped_release>();
  s.def("catalogue", list_catalogue,
        "(collective, name, rounds, bytes, restrictions, source, keeps_rank_order) of every algorithm.");
  s.def("build", build, "collective"_a, "algorithm"_a, "world"_a, "rank"_a, "root"_a = 0,
        "groups"_a = std::vector<int>(), "order"_a = std::vector<int>(), "One rank's schedule.");
  s.def("check", check_python, "schedules"_a,
        "'' if all ranks' schedules are right together, or what is not.");
  s.def("check_algorithm", check_algorithm, "collective"_a, "algorithm"_a, "world"_a, "root"_a = 0,
        "groups"_a = std::vector<int>(), "order"_a = std::vector<int>(), unlocked,
        "check() of all ranks' schedules, without making them here.");
  s.def("keeps_rank_order", keeps_rank_order_python, "schedules"_a,
        "Whether all ranks' schedules are right and add in rank order, in one combination.");
  s.def("algorithm_keeps_rank_order", algorithm_keeps_rank_order, "collective"_a, "algorithm"_a, "world"_a,
        "root"_a = 0, "groups"_a = std::vector<int>(), "order"_a = std::vector<int>(), unlocked,
        "keeps_rank_order() of all ranks' schedules, without making them here.");
  s.def(
      "cost", [](nb::handle schedule) { return cost_of(schedule_from_python(schedule)); }, "schedule"_a,
      "(rounds, sent, received), in units of the whole buffer.");
  s.def("algorithm_cost", algorithm_cost, "collective"_a, "algorithm"_a, "world"_a, "root"_a = 0,
        "groups"_a = std::vector<int>(), "order"_a = std::vector<int>(), unlocked,
        "The largest cost() over all ranks, each number by itself.");
  s.def(
      "describe", [](nb::handle schedule) { return describe(schedule_from_python(schedule)); }, "schedule"_a,
      "The schedule in words, a line per round.");
}

}  // namespace ringreduce

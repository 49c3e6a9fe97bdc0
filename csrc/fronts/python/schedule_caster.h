// Schedules cross between C++ and Python by value: on the Python side they are the dataclasses of
// ringreduce/schedules/steps.py, plain and mutable. Files that bind functions over schedules include this.
#pragma once

#include <nanobind/nanobind.h>

#include "schedule/schedule.h"

namespace ringreduce {

// Throws std::invalid_argument on an unknown name.
Collective collective_named(const std::string& name);

Order order_named(std::string_view name);

// Throws nanobind::type_error, python_error or std::invalid_argument, naming the wrong or missing attribute.
Schedule schedule_from_python(nanobind::handle schedule);
nanobind::object schedule_to_python(const Schedule& schedule);

}  // namespace ringreduce

namespace nanobind::detail {

template <>
struct type_caster<ringreduce::Schedule> {
  NB_TYPE_CASTER(ringreduce::Schedule, const_name("ringreduce.schedules.Schedule"))

  bool from_python(handle source, uint8_t, cleanup_list*) noexcept {
    try {
      value = ringreduce::schedule_from_python(source);
      return true;
    } catch (...) {
      return false;  // nanobind then raises TypeError, with the signature
    }
  }

  static handle from_cpp(const ringreduce::Schedule& schedule, rv_policy, cleanup_list*) noexcept {
    try {
      return ringreduce::schedule_to_python(schedule).release();
    } catch (python_error& error) {
      error.restore();
      return {};
    }
  }
};

}  // namespace nanobind::detail

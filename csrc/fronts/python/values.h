// Converts Python's values. A value of the wrong type or out of range raises a TypeError or ValueError that
// names the argument and says what it must be.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "transport/interface/transport.h"

namespace ringreduce {

inline constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max();

// Without null characters. Valid as long as `value` lives.
std::string_view text(nanobind::handle value, const char* argument);
// `what` completes "must be ... from 0 to 7".
std::int64_t whole(nanobind::handle value, const char* argument, std::int64_t least,
                   std::int64_t most = unlimited, const char* what = "an integer");
double real(nanobind::handle value, const char* argument);
bool flag(nanobind::handle value, const char* argument);
// Zero for None, which stands for the default. Otherwise zero is allowed only with `zero_too`.
Clock::duration seconds(nanobind::handle value, const char* argument, bool zero_too = false);
// Elements of each rank's block; nullopt for None.
std::optional<std::vector<std::size_t>> counts(nanobind::handle values, const char* argument);

}  // namespace ringreduce

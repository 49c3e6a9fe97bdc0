// Python's values as C++'s. A value of another kind, or one that is out of range, is refused with a TypeError
// or ValueError that names the argument and says what it must be.
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

// Without null characters. Good as long as `value` is.
std::string_view text(nanobind::handle value, const char* argument);
// `what` is put into "must be ... from 0 to 7".
std::int64_t whole(nanobind::handle value, const char* argument, std::int64_t least,
                   std::int64_t most = unlimited, const char* what = "an integer");
double real(nanobind::handle value, const char* argument);
bool flag(nanobind::handle value, const char* argument);
// None: zero, which stands for a default, and is refused otherwise if it is not said that it may be.
Clock::duration seconds(nanobind::handle value, const char* argument, bool zero_too = false);
// Elements of each rank's block; none for None.
std::optional<std::vector<std::size_t>> counts(nanobind::handle values, const char* argument);

}  // namespace ringreduce

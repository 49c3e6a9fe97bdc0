// The kernel that is one rank's part of a collective. It takes an `Errand` by value, and what to do. There is
// one for each family of dtypes, not for each thing to do: every kernel that calls a pass has the code of all
// passes.
#pragma once

#include <cstdint>

namespace ringreduce::device {

inline constexpr int rank_threads = 256;

enum class Duty : std::int32_t { interpret, one_shot, direct };

const void* wide_float_rank_kernel();
const void* small_float_rank_kernel();
const void* wide_integer_rank_kernel();
const void* small_integer_rank_kernel();

}  // namespace ringreduce::device

// The kernel for one rank's part of a collective. It takes an `Errand` by value. There is one for each family
// of dtypes, and not for each duty, because every kernel that calls a pass contains the code of all passes.
#pragma once

#include "gpu/reduce/kernels.h"

namespace ringreduce::device {

inline constexpr int rank_threads = 256;

template <Family family>
const void* rank_kernel_of();
// For calls whose messages are encoded.
const void* coded_rank_kernel();
// For messages between two ranks. It takes `Messages` by value.
const void* message_kernel();

}  // namespace ringreduce::device

// Whether schedules run by kernels that reach their peers' memory, or over NCCL.
#pragma once

#include "transport/interface/transport.h"

namespace ringreduce {

// RINGREDUCE_GPU_TRANSPORT, the same on all ranks, or else what serves where they are. A collective. Throws
// Error, on all ranks, where they do not agree.
bool agree_on_nccl(const Transport& transport, const Exchange& exchange);

// Throws InvalidArgument, on all ranks alike, where no kernel reaches all of them.
void check_that_kernels_serve(const Transport& transport);

}  // namespace ringreduce

// NCCL's own collectives: the algorithm "nccl".
#pragma once

#include "engine/planning/call.h"
#include "gpu/libnccl/group.h"

namespace ringreduce {

// Throws InvalidArgument if NCCL lacks it.
void check_that_nccl_has(const Call& call, const NcclLibrary& nccl);
// Launches it on the current device's stream.
void run_by_nccl(const Call& call, NcclGroup& group, int rank, void* stream, const NcclGroup::Tick& tick);

}  // namespace ringreduce

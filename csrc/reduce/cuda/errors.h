// What CUDA says, as exceptions.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace ringreduce::device {

// Throws std::runtime_error, in which `what` was being done. Where the context survives, CUDA forgets the
// error: the caller's next check of its own launches does not find ours.
void check(cudaError_t result, const std::string& what);

}  // namespace ringreduce::device

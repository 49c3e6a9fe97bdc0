// CUDA's errors as exceptions.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace ringreduce::device {

// Throws std::runtime_error, in which `what` names the operation. If the context survives, CUDA forgets the
// error, so the caller's next check of its own launches does not find ours.
inline void check(cudaError_t result, const std::string& what) {
  if (result == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  throw std::runtime_error(what + ": " + cudaGetErrorName(result) + " (" + cudaGetErrorString(result) + ")");
}

}  // namespace ringreduce::device

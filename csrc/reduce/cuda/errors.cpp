#include "reduce/cuda/errors.h"

#include <stdexcept>

namespace ringreduce::device {

void check(cudaError_t result, const std::string& what) {
  if (result == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  throw std::runtime_error(what + ": " + cudaGetErrorName(result) + " (" + cudaGetErrorString(result) + ")");
}

}  // namespace ringreduce::device

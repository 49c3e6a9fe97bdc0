#include "engine/gpu/kernels/cuda/rank_kernels.cuh"

namespace ringreduce::device {

const void* wide_float_rank_kernel() {
  return rank_kernel_of<WideFloats>();
}

}  // namespace ringreduce::device

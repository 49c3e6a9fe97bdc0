#include "engine/gpu/kernels/cuda/rank_kernels.cuh"

namespace ringreduce::device {

const void* wide_integer_rank_kernel() {
  return rank_kernel_of<WideIntegers>();
}

}  // namespace ringreduce::device

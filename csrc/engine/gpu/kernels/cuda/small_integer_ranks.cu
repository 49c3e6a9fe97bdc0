#include "engine/gpu/kernels/cuda/rank_kernels.cuh"

namespace ringreduce::device {

const void* small_integer_rank_kernel() {
  return rank_kernel_of<SmallIntegers>();
}

}  // namespace ringreduce::device

#include "engine/gpu/kernels/cuda/rank_kernels.cuh"

namespace ringreduce::device {

const void* small_float_rank_kernel() {
  return rank_kernel_of<SmallFloats>();
}

}  // namespace ringreduce::device

#pragma once

#include "gpu/reduce/families.h"
#include "gpu/reduce/kernels.h"

namespace ringreduce::device {

template <class Format, class Op, int sources>
__global__ void __launch_bounds__(block_threads) combine_kernel(const __grid_constant__ Spans spans) {
  const std::size_t threads = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  combine<Format, Op, sources>(spans, static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x,
                               threads);
}

template <class Coder, class Plain>
__global__ void __launch_bounds__(block_threads)
    coded_combine_kernel(const __grid_constant__ CodedSpans coded) {
  const std::size_t warps_per_block = blockDim.x / warp_lanes;
  combine_coded<Coder, Plain>(coded, blockIdx.x * warps_per_block + threadIdx.x / warp_lanes,
                              gridDim.x * warps_per_block);
}

template <class Format, class Op, int sources>
Kernel kernel_for(int elements_per_value) {
  return {reinterpret_cast<const void*>(combine_kernel<Format, Op, sources>), elements_per_value,
          pack_bytes * Combiner<Format, Op, sources>::unroll};
}

template <Family family>
Kernel combining_kernel(DType dtype, Op op, int sources) {
  Kernel kernel;
  visit_combination<is_in<family>>(dtype, op, [&]<class Combination>(Combination) {
    visit_sources<Combination>(sources, [&](auto known) {
      kernel = kernel_for<typename Combination::Format, typename Combination::Op, known>(
          Combination::elements_per_value);
    });
  });
  return kernel;
}

}  // namespace ringreduce::device

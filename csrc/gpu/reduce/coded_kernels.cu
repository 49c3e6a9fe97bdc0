#include "gpu/reduce/copy.h"
#include "gpu/reduce/kernel_templates.cuh"

namespace ringreduce::device {

// Not in an unnamed namespace: nvcc derives the name of one from the folder and the options of the build, so
// that two builds of a release would differ.
__global__ void __launch_bounds__(block_threads) copying_kernel(const __grid_constant__ Spans spans) {
  copy_bytes(spans, static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x,
             static_cast<std::size_t>(gridDim.x) * blockDim.x);
}

Kernel coded_kernel(Encoding wire, DType plain) {
  Kernel kernel;
  visit_codings(wire, plain, [&]<class Coder, class Plain>(Coder, Plain) {
    kernel.function = reinterpret_cast<const void*>(coded_combine_kernel<Coder, Plain>);
    kernel.bytes_per_thread = encoded_block * sizeof(typename Plain::Element) / warp_lanes;
  });
  return kernel;
}

Kernel copy_kernel() {
  return {reinterpret_cast<const void*>(copying_kernel), 1,
          pack_bytes * Combiner<Integer<std::uint8_t>, Sum, 1>::unroll};
}

}  // namespace ringreduce::device

#include "gpu/reduce/kernel_templates.cuh"

namespace ringreduce::device {

Kernel coded_kernel(Encoding wire, DType plain) {
  Kernel kernel;
  visit_codings(wire, plain, [&]<class Coder, class Plain>(Coder, Plain) {
    kernel.function = reinterpret_cast<const void*>(coded_combine_kernel<Coder, Plain>);
    kernel.bytes_per_thread = encoded_block * sizeof(typename Plain::Element) / warp_lanes;
  });
  return kernel;
}

Kernel copy_kernel() {
  return kernel_for<Integer<std::uint8_t>, Sum, 1>(1);
}

}  // namespace ringreduce::device

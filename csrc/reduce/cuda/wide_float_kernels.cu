#include "reduce/cuda/kernel_templates.cuh"

namespace ringreduce::device {

Kernel wide_float_kernel(DType dtype, Op op, int sources) {
  Kernel kernel;
  visit_wide_floats(dtype, op, sources, [&](auto combination) { kernel = kernel_for(combination); });
  return kernel;
}

}  // namespace ringreduce::device

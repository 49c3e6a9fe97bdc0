#include "gpu/reduce/kernel_templates.cuh"

template ringreduce::device::Kernel
ringreduce::device::combining_kernel<ringreduce::device::Family::small_integer>(DType, Op, int);

#include "gpu/kernels/cuda/rank_kernels.cuh"

template const void* ringreduce::device::rank_kernel_of<ringreduce::device::Family::small_integer>();

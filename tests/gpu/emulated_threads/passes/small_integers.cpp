#include "gpu/kernels/cuda/passes.h"

template struct ringreduce::device::Passes<ringreduce::device::Family::small_integer>;

// The pass for any dtype and op, compiled by families, as the kernels are.
#pragma once

#include "gpu/kernels/cuda/passes.h"

namespace ringreduce::device {

extern template struct Passes<Family::wide_float>;
extern template struct Passes<Family::small_float>;
extern template struct Passes<Family::wide_integer>;
extern template struct Passes<Family::small_integer>;

// Throw std::invalid_argument if there is none.
Pass pass_for(DType dtype, Op op);
Pass pass_for(Encoding wire, Encoding arrays);

}  // namespace ringreduce::device

// The pass for any dtype and op, by families, as the kernels are compiled.
#pragma once

#include "engine/gpu/kernels/cuda/passes.h"

namespace ringreduce::device {

Pass wide_float_pass(DType dtype, Op op);
Pass small_float_pass(DType dtype, Op op);
Pass wide_integer_pass(DType dtype, Op op);
Pass small_integer_pass(DType dtype, Op op);

// Throws std::invalid_argument if there is none.
Pass pass_for(DType dtype, Op op);

}  // namespace ringreduce::device

#include "passes.h"

namespace ringreduce::device {

Pass pass_for(DType dtype, Op op) {
  for (auto* family : {wide_float_pass, small_float_pass, wide_integer_pass, small_integer_pass}) {
    const Pass pass = family(dtype, op);
    if (pass.run != nullptr) return pass;
  }
  refuse(dtype, op);
}

}  // namespace ringreduce::device

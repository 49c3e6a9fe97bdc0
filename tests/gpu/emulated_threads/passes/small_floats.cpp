#include "passes.h"

namespace ringreduce::device {

Pass small_float_pass(DType dtype, Op op) {
  return SmallFloats::pass(dtype, op);
}

}  // namespace ringreduce::device

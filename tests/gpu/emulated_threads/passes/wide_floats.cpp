#include "passes.h"

namespace ringreduce::device {

Pass wide_float_pass(DType dtype, Op op) {
  return WideFloats::pass(dtype, op);
}

}  // namespace ringreduce::device

#include "passes.h"

namespace ringreduce::device {

Pass small_integer_pass(DType dtype, Op op) {
  return SmallIntegers::pass(dtype, op);
}

}  // namespace ringreduce::device

#include "passes.h"

namespace ringreduce::device {

Pass wide_integer_pass(DType dtype, Op op) {
  return WideIntegers::pass(dtype, op);
}

}  // namespace ringreduce::device

#include "passes.h"

namespace ringreduce::device {

Pass pass_for(DType dtype, Op op) {
  const Pass pass = in_family(dtype, [&](auto family) { return Passes<family>::pass(dtype, op); });
  if (pass.run == nullptr) refuse(dtype, op);
  return pass;
}

}  // namespace ringreduce::device

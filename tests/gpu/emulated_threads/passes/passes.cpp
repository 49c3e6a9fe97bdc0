#include "passes.h"

namespace ringreduce::device {

Pass pass_for(DType dtype, Op op) {
  const Pass pass = in_family(dtype, [&](auto family) { return Passes<family>::pass(dtype, op); });
  if (pass.run == nullptr) refuse(dtype, op);
  return pass;
}

Pass pass_for(Encoding wire, Encoding arrays) {
  const Pass pass = CodedPasses::pass(wire, arrays);
  if (pass.coded == nullptr) refuse(wire, DType::float32, Op::sum);
  return pass;
}

}  // namespace ringreduce::device

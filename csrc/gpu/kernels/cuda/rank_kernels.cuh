#pragma once

#include "gpu/kernels/cuda/direct.h"
#include "gpu/kernels/cuda/flagged.h"
#include "gpu/kernels/cuda/interpreter.h"
#include "gpu/kernels/cuda/rank_kernels.h"

namespace ringreduce::device {

union RankShared {
  InterpreterShared interpreter;
  FlaggedShared flagged;
  DirectShared direct;
};

template <Family family>
__global__ void __launch_bounds__(rank_threads, 2) rank_kernel(const __grid_constant__ Errand errand) {
  __shared__ RankShared shared;
  __shared__ Pass pass;  // known to all threads once they have met, as kernels do first
  Block block;
  block.alone(
      [&] { pass = Passes<family>::pass(static_cast<DType>(errand.dtype), static_cast<Op>(errand.op)); });
  if (errand.duty == Duty::flagged) return Flagged(block, shared.flagged, errand, pass).run();
  if (errand.duty == Duty::direct && Direct(block, shared.direct, errand, pass).run()) return;
  Interpreter(block, shared.interpreter, errand, pass).run();
}

template <Family family>
const void* rank_kernel_of() {
  return reinterpret_cast<const void*>(rank_kernel<family>);
}

}  // namespace ringreduce::device

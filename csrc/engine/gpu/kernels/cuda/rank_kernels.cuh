#pragma once

#include "engine/gpu/kernels/cuda/direct.h"
#include "engine/gpu/kernels/cuda/interpreter.h"
#include "engine/gpu/kernels/cuda/one_shot.h"
#include "engine/gpu/kernels/cuda/rank_kernels.h"

namespace ringreduce::device {

union RankShared {
  InterpreterShared interpreter;
  OneShotShared one_shot;
  DirectShared direct;
};

template <class Family>
__global__ void __launch_bounds__(rank_threads)
    rank_kernel(const __grid_constant__ Errand errand, const Duty duty) {
  __shared__ RankShared shared;
  Block block;
  const Pass pass = Family::pass(static_cast<DType>(errand.dtype), static_cast<Op>(errand.op));
  switch (duty) {
    case Duty::interpret:
      return Interpreter<Block>(block, shared.interpreter, errand, pass).run();
    case Duty::one_shot:
      return OneShot<Block>(block, shared.one_shot, errand, pass).run();
    case Duty::direct:
      return Direct<Block>(block, shared.direct, errand, pass).run();
  }
}

template <class Family>
const void* rank_kernel_of() {
  return reinterpret_cast<const void*>(rank_kernel<Family>);
}

}  // namespace ringreduce::device

#include "gpu/kernels/cuda/interpreter.h"
#include "gpu/kernels/cuda/rank_kernels.h"

namespace ringreduce::device {

__global__ void __launch_bounds__(rank_threads, 2) run_coded_rank(const __grid_constant__ Errand errand) {
  __shared__ InterpreterShared shared;
  __shared__ Pass pass;  // known to all threads once they have met, as kernels do first
  Block block;
  block.alone([&] {
    pass = CodedPasses::pass(static_cast<Encoding>(errand.wire), static_cast<Encoding>(errand.arrays));
  });
  CodedInterpreter(block, shared, errand, pass).run();
}

const void* coded_rank_kernel() {
  return reinterpret_cast<const void*>(run_coded_rank);
}

}  // namespace ringreduce::device

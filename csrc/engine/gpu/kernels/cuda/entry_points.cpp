#include "engine/gpu/kernels/cuda/entry_points.h"

#include "engine/gpu/kernels/cuda/launching.h"
#include "reduce/cuda/failures.h"

using ringreduce::device::failure_of;

const char* ringreduce_cuda_fit(int* blocks) {
  return failure_of([&] { *blocks = ringreduce::device::blocks_that_fit(); });
}

const char* ringreduce_cuda_interpret(const ringreduce::device::Errand* errand, void* stream) {
  return failure_of([&] { ringreduce::device::launch_interpreter(*errand, stream); });
}

const char* ringreduce_cuda_one_shot(const ringreduce::device::Errand* errand, void* stream) {
  return failure_of([&] { ringreduce::device::launch_one_shot(*errand, stream); });
}

const char* ringreduce_cuda_direct(const ringreduce::device::Errand* errand, void* stream) {
  return failure_of([&] { ringreduce::device::launch_direct(*errand, stream); });
}

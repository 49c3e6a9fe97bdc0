#include "engine/gpu/kernels/cuda/launching.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>

#include "engine/gpu/kernels/cuda/rank_kernels.h"
#include "reduce/cuda/errors.h"
#include "reduce/cuda/kernels.h"

namespace ringreduce::device {
namespace {

const void* kernel_for(const Errand& errand) {
  switch (family_of(static_cast<DType>(errand.dtype))) {
    case Family::wide_float:
      return wide_float_rank_kernel();
    case Family::small_float:
      return small_float_rank_kernel();
    case Family::wide_integer:
      return wide_integer_rank_kernel();
    case Family::small_integer:
      return small_integer_rank_kernel();
  }
  return nullptr;
}

void launch(Duty duty, const Errand& errand, void* stream, const char* name) {
  Errand parameter = errand;
  void* parameters[] = {&parameter, &duty};
  const dim3 grid(static_cast<unsigned>(errand.boxes.blocks));
  check(cudaLaunchKernel(kernel_for(errand), grid, dim3(rank_threads), parameters, 0,
                         static_cast<cudaStream_t>(stream)),
        std::string(name) + " of " + std::to_string(errand.boxes.blocks) + " thread blocks");
}

}  // namespace

int blocks_that_fit() {
  int device = 0, multiprocessors = 0;
  check(cudaGetDevice(&device), "device");
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "device");
  int fewest = 1 << 20;
  for (const void* kernel : {wide_float_rank_kernel(), small_float_rank_kernel(), wide_integer_rank_kernel(),
                             small_integer_rank_kernel()}) {
    // Asking for attributes loads a kernel, too.
    cudaFuncAttributes attributes;
    check(cudaFuncGetAttributes(&attributes, kernel), "loading kernels");
    int each = 0;
    check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, rank_threads, 0), "kernels");
    fewest = std::min(fewest, each);
  }
  return fewest * multiprocessors;
}

void launch_interpreter(const Errand& errand, void* stream) {
  launch(Duty::interpret, errand, stream, "interpreter");
}

void launch_one_shot(const Errand& errand, void* stream) {
  launch(Duty::one_shot, errand, stream, "one-shot");
}

void launch_direct(const Errand& errand, void* stream) {
  launch(Duty::direct, errand, stream, "direct");
}

}  // namespace ringreduce::device

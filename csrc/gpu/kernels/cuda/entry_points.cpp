#include "gpu/kernels/cuda/entry_points.h"

#include <algorithm>
#include <climits>
#include <string>

#include "gpu/kernels/cuda/rank_kernels.h"
#include "gpu/reduce/errors.h"
#include "gpu/reduce/failures.h"

using namespace ringreduce::device;  // NOLINT(google-build-using-namespace)

namespace {

int blocks_that_fit(const void* kernel) {
  int blocks = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, rank_threads, 0), "kernels");
  return blocks;
}

// A kernel whose threads need more stack than all before makes CUDA wait for everything that runs on the
// device.
void let_stacks_have(std::size_t bytes) {
  std::size_t now = 0;
  check(cudaDeviceGetLimit(&now, cudaLimitStackSize), "stacks");
  if (bytes > now) check(cudaDeviceSetLimit(cudaLimitStackSize, bytes), "stacks");
}

// A multiprocessor divides its memory between shared memory and its cache, and changes the division only when
// nothing runs there. A small kernel that waits could keep a larger one out, which it may be waiting for, so
// all get the same division. It is the one that the number of blocks that fit is counted with; and the cache
// matters little, because nothing is read twice.
void divide_memory_for(const void* kernel) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared),
        "shared memory");
}

template <class Parameter>
void launch(const void* kernel, int blocks, Parameter parameter, void* stream, const char* what) {
  void* parameters[] = {&parameter};
  check(cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(blocks)), dim3(rank_threads), parameters, 0,
                         static_cast<cudaStream_t>(stream)),
        std::string(what) + " of " + std::to_string(blocks) + " thread blocks");
}

}  // namespace

const char* ringreduce_cuda_fit(int* blocks) {
  return failure_of([&] {
    int device = 0, multiprocessors = 0;
    check(cudaGetDevice(&device), "device");
    check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "device");
    int fit = INT_MAX;
    std::size_t stack = 0;
    for (const void* kernel :
         {rank_kernel_of<Family::wide_float>(), rank_kernel_of<Family::small_float>(),
          rank_kernel_of<Family::wide_integer>(), rank_kernel_of<Family::small_integer>(),
          coded_rank_kernel(), message_kernel()}) {
      cudaFuncAttributes attributes;  // querying them loads the kernel
      check(cudaFuncGetAttributes(&attributes, kernel), "loading kernels");
      stack = std::max(stack, attributes.localSizeBytes);
      divide_memory_for(kernel);
      fit = std::min(fit, blocks_that_fit(kernel));
    }
    let_stacks_have(stack);
    *blocks = multiprocessors * fit;
  });
}

const char* ringreduce_cuda_run(const Errand* errand, void* stream) {
  return failure_of([&] {
    const void* const kernel = errand->wire != 0
                                   ? coded_rank_kernel()
                                   : in_family(static_cast<ringreduce::DType>(errand->dtype),
                                               [](auto family) { return rank_kernel_of<family>(); });
    launch(kernel, errand->boxes.blocks, prepared(*errand), stream, "a collective");
  });
}

const char* ringreduce_cuda_carry(const Messages* messages, void* stream) {
  return failure_of([&] {
    launch(message_kernel(), messages->pairs * messages->boxes.lanes, *messages, stream, "messages");
  });
}

#include "engine/gpu/kernels/cuda/entry_points.h"

#include <algorithm>
#include <string>

#include "engine/gpu/kernels/cuda/rank_kernels.h"
#include "reduce/cuda/errors.h"
#include "reduce/cuda/failures.h"

using namespace ringreduce::device;  // NOLINT(google-build-using-namespace)

namespace {

// Asking for attributes loads a kernel, too.
int blocks_that_fit(const void* kernel) {
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, kernel), "loading kernels");
  int blocks = 0;
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, rank_threads, 0), "kernels");
  return blocks;
}

}  // namespace

const char* ringreduce_cuda_fit(int* blocks) {
  return failure_of([&] {
    int device = 0, multiprocessors = 0;
    check(cudaGetDevice(&device), "device");
    check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "device");
    *blocks = multiprocessors * std::min({blocks_that_fit(rank_kernel_of<Family::wide_float>()),
                                          blocks_that_fit(rank_kernel_of<Family::small_float>()),
                                          blocks_that_fit(rank_kernel_of<Family::wide_integer>()),
                                          blocks_that_fit(rank_kernel_of<Family::small_integer>())});
  });
}

const char* ringreduce_cuda_run(const Errand* errand, void* stream) {
  return failure_of([&] {
    const void* const kernel = in_family(static_cast<ringreduce::DType>(errand->dtype),
                                         [](auto family) { return rank_kernel_of<family>(); });
    Errand parameter = *errand;
    void* parameters[] = {&parameter};
    const dim3 grid(static_cast<unsigned>(errand->boxes.blocks));
    check(
        cudaLaunchKernel(kernel, grid, dim3(rank_threads), parameters, 0, static_cast<cudaStream_t>(stream)),
        "a collective of " + std::to_string(errand->boxes.blocks) + " thread blocks");
  });
}

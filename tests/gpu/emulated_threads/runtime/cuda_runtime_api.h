// As little of CUDA's runtime as the entry points of csrc/gpu/reduce and csrc/gpu/kernels/cuda call,
// so that tests run these. What fails throws, and they say what.
#pragma once

#include <cstddef>

enum cudaError_t { cudaSuccess };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount };
enum cudaLimit { cudaLimitStackSize };
enum cudaFuncAttribute { cudaFuncAttributePreferredSharedMemoryCarveout };
enum cudaSharedCarveout { cudaSharedmemCarveoutMaxShared = 100 };

struct cudaFuncAttributes {
  std::size_t localSizeBytes;
};
struct dim3 {
  explicit dim3(unsigned x_) : x(x_) {}
  unsigned x;
};
using cudaStream_t = struct CUstream_st*;

cudaError_t cudaGetDevice(int* device);
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceGetLimit(std::size_t* value, cudaLimit limit);
cudaError_t cudaDeviceSetLimit(cudaLimit limit, std::size_t value);
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* function);
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value);
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads,
                                                          std::size_t shared);
cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** parameters,
                             std::size_t shared, cudaStream_t stream);

inline cudaError_t cudaGetLastError() {
  return cudaSuccess;
}
inline const char* cudaGetErrorName(cudaError_t) {
  return "";
}
inline const char* cudaGetErrorString(cudaError_t) {
  return "";
}

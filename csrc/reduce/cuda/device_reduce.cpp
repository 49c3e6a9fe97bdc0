#include "reduce/cuda/device_reduce.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>

#include "reduce/cuda/errors.h"
#include "reduce/cuda/kernels.h"
#include "reduce/cuda/spans.h"

namespace ringreduce::device {
namespace {

// Beyond this threads loop: a few waves, so that no multiprocessor is left idle at the end for long.
constexpr std::size_t blocks_per_multiprocessor = 32;

std::string in_words(const Operands& operands) {
  return " of " + std::to_string(operands.source_count) + " sources into " +
         std::to_string(operands.destination_count) + " destinations of " + std::to_string(operands.count) +
         " elements";
}

unsigned blocks_for(std::size_t bytes, const Kernel& kernel, const Launch& launch, const std::string& what) {
  if (launch.blocks > 0) return static_cast<unsigned>(launch.blocks);
  int device = 0, multiprocessors = 0;
  check(cudaGetDevice(&device), what);
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), what);
  const std::size_t block_bytes = kernel.bytes_per_thread * block_threads;
  const std::size_t needed = (bytes + block_bytes - 1) / block_bytes;
  return static_cast<unsigned>(std::min(needed, multiprocessors * blocks_per_multiprocessor));
}

// `spans` is the kernel's parameter.
template <class Parameter>
void start(const Kernel& kernel, std::size_t bytes, Parameter spans, const Launch& launch,
           const std::string& what) {
  if (bytes == 0) return;
  const dim3 grid(blocks_for(bytes, kernel, launch, what));
  void* parameters[] = {&spans};
  auto* const stream = static_cast<cudaStream_t>(launch.stream);
  check(cudaLaunchKernel(kernel.function, grid, dim3(block_threads), parameters, 0, stream), what);
}

Kernel kernel_for(DType dtype, Op op, int sources) {
  if (!supports(dtype, op)) refuse(dtype, op);
  return in_family(dtype, [&](auto family) { return combining_kernel<family>(dtype, op, sources); });
}

Spans spans_of(const Operands& operands, double scale) {
  return make_spans(operands.destinations, operands.destination_count, operands.sources,
                    operands.source_count, operands.count, scale);
}

}  // namespace

void combine(DType dtype, Op op, const Operands& operands, double scale, const Launch& launch) {
  const Kernel kernel = kernel_for(dtype, op, operands.source_count);
  Spans spans = spans_of(operands, scale);
  spans.count *= kernel.elements_per_value;
  start(kernel, operands.count * size_of(dtype), spans, launch,
        std::string(name_of(dtype)) + " " + name_of(op) + in_words(operands));
}

void copy(void* const* destinations, int destination_count, const void* source, std::size_t bytes,
          const Launch& launch) {
  const Operands operands = {destinations, destination_count, &source, 1, bytes};
  start(copy_kernel(), bytes, spans_of(operands, 1), launch, "copy" + in_words(operands));
}

void combine_coded(const Coded& coded, const Operands& operands, double scale, const Launch& launch) {
  const Kernel kernel = coded_kernel(coded.wire, coded.plain);
  if (kernel.function == nullptr || !supports(DType::float32, coded.op)) {
    refuse(coded.wire, coded.plain, coded.op);
  }
  const CodedSpans spans = {spans_of(operands, scale), coded.op, coded.encoded_sources,
                            coded.encoded_destinations, coded.quantize};
  start(kernel, operands.count * size_of(coded.plain), spans, launch,
        std::string(name_of(coded.wire)) + " " + name_of(coded.op) + in_words(operands));
}

}  // namespace ringreduce::device

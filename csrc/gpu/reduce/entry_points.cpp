#include "gpu/reduce/entry_points.h"

#include <algorithm>
#include <string>

#include "gpu/reduce/errors.h"
#include "gpu/reduce/failures.h"
#include "gpu/reduce/kernels.h"
#include "gpu/reduce/spans.h"

using namespace ringreduce;          // NOLINT(google-build-using-namespace)
using namespace ringreduce::device;  // NOLINT(google-build-using-namespace)

namespace {

// Beyond this number threads loop: a few waves, so that no multiprocessor is idle for long at the end.
constexpr std::size_t blocks_per_multiprocessor = 32;

template <class Enum>
Enum checked(int number, int count, const char* what) {
  if (number >= 0 && number < count) return static_cast<Enum>(number);
  throw std::invalid_argument(std::string(what) + " " + std::to_string(number) + " is unknown");
}

DType dtype_of(int number) {
  return checked<DType>(number, dtype_count, "dtype");
}

Op op_of(int number) {
  return checked<Op>(number, op_count, "op");
}

struct Launch {
  std::string what;  // in words, for errors
  void* stream;
  int blocks;
};

unsigned blocks_for(std::size_t bytes, const Kernel& kernel, const Launch& launch) {
  if (launch.blocks > 0) return static_cast<unsigned>(launch.blocks);
  int device = 0, multiprocessors = 0;
  check(cudaGetDevice(&device), launch.what);
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), launch.what);
  const std::size_t block_bytes = kernel.bytes_per_thread * block_threads;
  const std::size_t needed = (bytes + block_bytes - 1) / block_bytes;
  return static_cast<unsigned>(std::min(needed, multiprocessors * blocks_per_multiprocessor));
}

// `parameter` is the kernel's; `spans` is part of it.
template <class Parameter>
void start(const Kernel& kernel, std::size_t bytes, Parameter parameter, const Spans& spans, Launch launch) {
  if (bytes == 0) return;
  launch.what += " of " + std::to_string(spans.source_count) + " sources into " +
                 std::to_string(spans.destination_count) + " destinations of " + std::to_string(spans.count) +
                 " elements";
  const dim3 grid(blocks_for(bytes, kernel, launch));
  void* parameters[] = {&parameter};
  auto* const stream = static_cast<cudaStream_t>(launch.stream);
  check(cudaLaunchKernel(kernel.function, grid, dim3(block_threads), parameters, 0, stream), launch.what);
}

// Querying attributes loads a kernel.
void load(const Kernel& kernel) {
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, kernel.function), "loading kernels");
}

Kernel combining(DType dtype, Op op, int sources) {
  return in_family(dtype, [&](auto family) { return combining_kernel<family>(dtype, op, sources); });
}

// Frequent combinations have their own kernels for some numbers of sources.
void load_combining(DType dtype, Op op) {
  const Kernel any = combining(dtype, op, 1);
  load(any);
  for (const int sources : {2, 4, 8}) {
    const Kernel own = combining(dtype, op, sources);
    if (own.function != any.function) load(own);
  }
}

}  // namespace

const char* ringreduce_cuda_load() {
  return failure_of([] {
    load(copy_kernel());
    for (int number = 0; number < dtype_count; ++number) {
      const DType dtype = dtype_of(number);
      for (int op = 0; op < op_count; ++op) {
        if (supports(dtype, op_of(op))) load_combining(dtype, op_of(op));
      }
    }
  });
}

const char* ringreduce_cuda_combine(int dtype_number, int op_number, void* const* destinations,
                                    int destination_count, const void* const* sources, int source_count,
                                    std::size_t count, double scale, void* stream, int blocks) {
  return failure_of([&] {
    const DType dtype = dtype_of(dtype_number);
    const Op op = op_of(op_number);
    if (!supports(dtype, op)) refuse(dtype, op);
    const Kernel kernel = combining(dtype, op, source_count);
    const Spans given = make_spans(destinations, destination_count, sources, source_count, count, scale);
    Spans parts = given;
    parts.count *= kernel.elements_per_value;
    start(kernel, count * size_of(dtype), parts, given,
          {std::string(name_of(dtype)) + " " + name_of(op), stream, blocks});
  });
}

const char* ringreduce_cuda_copy(void* const* destinations, int destination_count, const void* source,
                                 std::size_t bytes, void* stream, int blocks) {
  return failure_of([&] {
    const Spans spans = make_spans(destinations, destination_count, &source, 1, bytes, 1);
    start(copy_kernel(), bytes, spans, spans, {"copy", stream, blocks});
  });
}

const char* ringreduce_cuda_combine_coded(int wire_number, int plain_number, int op_number,
                                          std::uint32_t encoded_sources, std::uint32_t encoded_destinations,
                                          int quantize, void* const* destinations, int destination_count,
                                          const void* const* sources, int source_count, std::size_t count,
                                          double scale, void* stream, int blocks) {
  return failure_of([&] {
    const auto wire = checked<Encoding>(wire_number, encoding_count, "wire");
    const DType plain = dtype_of(plain_number);
    const Op op = op_of(op_number);
    const Kernel kernel = coded_kernel(wire, plain);
    if (kernel.function == nullptr || !supports(DType::float32, op)) refuse(wire, plain, op);
    const CodedSpans coded = {
        make_spans(destinations, destination_count, sources, source_count, count, scale), op, encoded_sources,
        encoded_destinations, quantize != 0};
    start(kernel, count * size_of(plain), coded, coded.spans,
          {std::string(name_of(wire)) + " " + name_of(op), stream, blocks});
  });
}

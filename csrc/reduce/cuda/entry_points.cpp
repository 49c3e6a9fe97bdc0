#include "reduce/cuda/entry_points.h"

#include <stdexcept>
#include <string>

#include "reduce/cuda/device_reduce.h"
#include "reduce/cuda/failures.h"

using namespace ringreduce;          // NOLINT(google-build-using-namespace)
using namespace ringreduce::device;  // NOLINT(google-build-using-namespace)

namespace {

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

}  // namespace

const char* ringreduce_cuda_combine(int dtype, int op, void* const* destinations, int destination_count,
                                    const void* const* sources, int source_count, std::size_t count,
                                    double scale, void* stream, int blocks) {
  return failure_of([&] {
    combine(dtype_of(dtype), op_of(op), {destinations, destination_count, sources, source_count, count},
            scale, {stream, blocks});
  });
}

const char* ringreduce_cuda_copy(void* const* destinations, int destination_count, const void* source,
                                 std::size_t bytes, void* stream, int blocks) {
  return failure_of([&] { copy(destinations, destination_count, source, bytes, {stream, blocks}); });
}

const char* ringreduce_cuda_combine_coded(int wire, int plain, int op, std::uint32_t encoded_sources,
                                          std::uint32_t encoded_destinations, int quantize,
                                          void* const* destinations, int destination_count,
                                          const void* const* sources, int source_count, std::size_t count,
                                          double scale, void* stream, int blocks) {
  return failure_of([&] {
    const Coded coded = {checked<Encoding>(wire, encoding_count, "wire"),
                         dtype_of(plain),
                         op_of(op),
                         encoded_sources,
                         encoded_destinations,
                         quantize != 0};
    combine_coded(coded, {destinations, destination_count, sources, source_count, count}, scale,
                  {stream, blocks});
  });
}

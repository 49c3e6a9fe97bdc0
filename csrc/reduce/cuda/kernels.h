// The kernels that a call on a stream launches: thin, over the functions that groups of threads run.
#pragma once

#include <cstddef>

#include "reduce/dtype.h"
#include "reduce/encoding.h"

namespace ringreduce::device {

inline constexpr int block_threads = 256;

struct Kernel {
  const void* function = nullptr;    // null: there is none for these arguments
  int elements_per_value = 1;        // what it counts
  std::size_t bytes_per_thread = 0;  // of a span, that a thread has in hand at once
};

// `sources` is their number. Each takes a `Spans` by value.
Kernel wide_float_kernel(DType dtype, Op op, int sources);
Kernel small_float_kernel(DType dtype, Op op, int sources);
Kernel wide_integer_kernel(DType dtype, Op op, int sources);
Kernel small_integer_kernel(DType dtype, Op op, int sources);
// Moves bytes.
Kernel copy_kernel();
// Takes a `CodedSpans` by value.
Kernel coded_kernel(Encoding wire, DType plain);

}  // namespace ringreduce::device

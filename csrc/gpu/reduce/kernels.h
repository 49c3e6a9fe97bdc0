// The kernels that a call launches on a stream: thin wrappers of the functions that groups of threads run.
#pragma once

#include <cstddef>
#include <type_traits>

#include "reduce/dtype.h"
#include "reduce/encoding.h"

namespace ringreduce::device {

inline constexpr int block_threads = 256;

struct Kernel {
  const void* function = nullptr;    // null: none for these arguments
  int elements_per_value = 1;        // of the spans' count
  std::size_t bytes_per_thread = 0;  // of a span, that a thread handles at once
};

// Dtypes that are compiled together, separately from others, because they take long.
enum class Family : std::uint8_t { wide_float, small_float, wide_integer, small_integer };

constexpr Family family_of(DType dtype) {
  if (is_whole(kind_of(dtype))) return size_of(dtype) >= 4 ? Family::wide_integer : Family::small_integer;
  return size_of(dtype) >= 4 ? Family::wide_float : Family::small_float;
}

// Calls visit(std::integral_constant of the dtype's family).
template <class Visit>
auto in_family(DType dtype, Visit visit) {
  switch (family_of(dtype)) {
    case Family::wide_float:
      return visit(std::integral_constant<Family, Family::wide_float>());
    case Family::small_float:
      return visit(std::integral_constant<Family, Family::small_float>());
    case Family::wide_integer:
      return visit(std::integral_constant<Family, Family::wide_integer>());
    default:
      return visit(std::integral_constant<Family, Family::small_integer>());
  }
}

// `sources` is their number. The kernel takes a `Spans` by value.
template <Family family>
Kernel combining_kernel(DType dtype, Op op, int sources);
// Moves bytes.
Kernel copy_kernel();
// The kernel takes a `CodedSpans` by value.
Kernel coded_kernel(Encoding wire, DType plain);

}  // namespace ringreduce::device

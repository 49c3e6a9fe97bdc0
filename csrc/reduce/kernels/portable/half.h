// float16 <-> float32 in integer arithmetic, where the instruction set has no conversion of its own.
#pragma once

#include "reduce/kernels/small_float.h"

namespace ringreduce {
namespace {

template <int N>
RINGREDUCE_INLINE Vec<float, N> half_to_float(Vec<std::uint16_t, N> half) {
  return SmallFloat<std::uint16_t, 5, 10, true>::decode<N>(half);
}

template <int N>
RINGREDUCE_INLINE Vec<std::uint16_t, N> float_to_half(Vec<float, N> value) {
  return SmallFloat<std::uint16_t, 5, 10, true>::encode<N>(value);
}

}  // namespace
}  // namespace ringreduce

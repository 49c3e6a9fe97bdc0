// How each element type is held while it is combined: the lanes it is decoded to and encoded from.
#pragma once

#include "half.h"  // of the family of instruction sets that is being built
#include "reduce/kernels/small_float.h"

namespace ringreduce {
namespace {

// Integers are combined as they are.
template <class T>
struct Integer {
  using Element = T;
  using Lane = T;
  template <int N>
  RINGREDUCE_INLINE static Vec<T, N> decode(Vec<T, N> stored) {
    return stored;
  }
  template <int N>
  RINGREDUCE_INLINE static Vec<T, N> encode(Vec<T, N> value) {
    return value;
  }
};

// Which NaN an addition returns depends on the order of its operands, which ranks and compilers choose
// differently: every result that is NaN becomes the same one.
template <class V>
RINGREDUCE_INLINE V one_nan(V value) {
  const V nan = V{} + __builtin_nanf("");
  return value == value ? value : nan;
}

template <class T>
struct Float {
  using Element = T;
  using Lane = T;
  template <int N>
  RINGREDUCE_INLINE static Vec<T, N> decode(Vec<T, N> stored) {
    return stored;
  }
  template <int N>
  RINGREDUCE_INLINE static Vec<T, N> encode(Vec<T, N> value) {
    return one_nan(value);
  }
};

struct Float16 {
  using Element = std::uint16_t;
  using Lane = float;
  template <int N>
  RINGREDUCE_INLINE static Vec<float, N> decode(Vec<std::uint16_t, N> stored) {
    return half_to_float<N>(stored);
  }
  template <int N>
  RINGREDUCE_INLINE static Vec<std::uint16_t, N> encode(Vec<float, N> value) {
    return float_to_half<N>(one_nan(value));
  }
};

// The upper half of a float32.
struct BFloat16 {
  using Element = std::uint16_t;
  using Lane = float;
  template <int N>
  RINGREDUCE_INLINE static Vec<float, N> decode(Vec<std::uint16_t, N> stored) {
    return bits_as<float, N>(widen<std::uint16_t, N>(stored) << 16);
  }
  template <int N>
  RINGREDUCE_INLINE static Vec<std::uint16_t, N> encode(Vec<float, N> value) {
    using Bits = Vec<std::uint32_t, N>;
    const Bits bits = bits_as<std::uint32_t, N>(value);
    const Bits rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return narrow<std::uint16_t, N>(value == value ? rounded : Bits{} + 0x7fc0u);
  }
};

using Float8E4M3 = SmallFloat<std::uint8_t, 4, 3, false>;
using Float8E5M2 = SmallFloat<std::uint8_t, 5, 2, true>;

}  // namespace
}  // namespace ringreduce

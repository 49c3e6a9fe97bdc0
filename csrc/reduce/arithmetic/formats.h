// How each element type is held while it is combined: the lanes that it is decoded to and encoded from.
#pragma once

#include "half.h"  // for the target that the build file compiles for
#include "reduce/arithmetic/floats.h"

namespace ringreduce::RINGREDUCE_ISA {

// Integers are combined as they are.
template <class T>
struct Integer {
  using Element = T;
  using Lane = T;
  RINGREDUCE_INLINE static auto decode(auto stored) { return stored; }
  RINGREDUCE_INLINE static auto encode(auto value) { return value; }
};

template <class T>
struct Float : Integer<T> {
  RINGREDUCE_INLINE static auto encode(auto value) { return one_nan(value); }
};

// The upper half of a float32. Some processors round to it (as_bfloat16 in lanes.h).
struct BFloat16 {
  using Element = std::uint16_t;
  using Lane = float;
  template <class V>
  RINGREDUCE_INLINE static Like<float, V> decode(V stored) {
    return bits_as<Like<float, V>>(widen(stored) << 16);
  }
  template <class V>
  RINGREDUCE_INLINE static Like<std::uint16_t, V> encode(V value) {
    if constexpr (requires { as_bfloat16(value); }) {
      return as_bfloat16(one_nan(value));
    } else {
      using Bits = Like<std::uint32_t, V>;
      const Bits bits = bits_as<Bits>(value);
      const Bits rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
      return narrow<std::uint16_t>(value == value ? rounded : Bits{} + 0x7fc0u);
    }
  }
};

using Float8E4M3 = SmallFloat<std::uint8_t, 4, 3, false>;
using Float8E5M2 = SmallFloat<std::uint8_t, 5, 2, true>;

template <class T>
struct Pair {
  T real, imag;
};

// By the schoolbook formula, like NumPy. Its bits do not depend on the order of the two operands.
template <class T>
RINGREDUCE_INLINE Pair<T> operator*(Pair<T> a, Pair<T> b) {
  return {a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real};
}

// For products only: in all other operations, complex numbers are twice as many floats.
template <class T>
struct Complex : Integer<Pair<T>> {
  RINGREDUCE_INLINE static Pair<T> encode(Pair<T> value) {
    return {one_nan(value.real), one_nan(value.imag)};
  }
};

}  // namespace ringreduce::RINGREDUCE_ISA

// How each element type is held while it is combined: the lane it is decoded to and encoded from. The same
// bits as reduce/kernels/formats.h gives, an element at a time.
#pragma once

#include "half.h"  // of nvcc or emulated
#include "reduce/cuda/small_float.h"

namespace ringreduce::device {

// Integers are combined as they are.
template <class T>
struct Integer {
  using Element = T;
  using Lane = T;
  RINGREDUCE_DEVICE static T decode(T stored) { return stored; }
  RINGREDUCE_DEVICE static T encode(T value) { return value; }
};

// Every result that is NaN becomes the same one, whatever a processor makes of its operands' bits.
RINGREDUCE_DEVICE float one_nan(float value) {
  return value == value ? value : bits_as<float>(0x7fc00000u);
}
RINGREDUCE_DEVICE double one_nan(double value) {
  return value == value ? value : bits_as<double>(std::uint64_t{0x7ff8} << 48);
}

template <class T>
struct Float {
  using Element = T;
  using Lane = T;
  RINGREDUCE_DEVICE static T decode(T stored) { return stored; }
  RINGREDUCE_DEVICE static T encode(T value) { return one_nan(value); }
};

struct Float16 {
  using Element = std::uint16_t;
  using Lane = float;
  RINGREDUCE_DEVICE static float decode(std::uint16_t stored) { return half_to_float(stored); }
  RINGREDUCE_DEVICE static std::uint16_t encode(float value) {
    const std::uint16_t half = float_to_half(value);
    return value == value ? half : 0x7e00;
  }
};

// The upper half of a float32.
struct BFloat16 {
  using Element = std::uint16_t;
  using Lane = float;
  RINGREDUCE_DEVICE static float decode(std::uint16_t stored) {
    return bits_as<float>(static_cast<std::uint32_t>(stored) << 16);
  }
  RINGREDUCE_DEVICE static std::uint16_t encode(float value) {
    const std::uint32_t bits = bits_as<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return static_cast<std::uint16_t>(value == value ? rounded : 0x7fc0u);
  }
};

using Float8E4M3 = SmallFloat<std::uint8_t, 4, 3, false>;
using Float8E5M2 = SmallFloat<std::uint8_t, 5, 2, true>;

template <class T>
struct Pair {
  T real, imag;
};

// By the schoolbook formula, as the CPU does it.
template <class T>
RINGREDUCE_DEVICE Pair<T> operator*(Pair<T> a, Pair<T> b) {
  return {a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real};
}

// For products alone: for all else that complex numbers have, they are twice as many floats.
template <class T>
struct Complex {
  using Element = Pair<T>;
  using Lane = Pair<T>;
  RINGREDUCE_DEVICE static Pair<T> decode(Pair<T> stored) { return stored; }
  RINGREDUCE_DEVICE static Pair<T> encode(Pair<T> value) {
    return {one_nan(value.real), one_nan(value.imag)};
  }
};

}  // namespace ringreduce::device

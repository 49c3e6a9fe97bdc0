// Floats of 8 and 16 bits, converted to and from float32 by integer arithmetic on whole vectors.
#pragma once

#include "reduce/kernels/vector.h"
#include "widen.h"  // of the family of instruction sets that is being built

namespace ringreduce {
namespace {

// A float with one sign bit, `Exponent` and `Mantissa` bits. With infinity it follows IEEE rules; without
// ("fn"), the pattern of all ones is the only NaN, and the other patterns of the top exponent are numbers.
template <class Stored, int Exponent, int Mantissa, bool has_infinity>
struct SmallFloat {
  using Element = Stored;
  using Lane = float;

  static constexpr std::uint32_t shift = 23 - Mantissa;  // from our mantissa to float32's
  static constexpr std::uint32_t bias = (1u << (Exponent - 1)) - 1;
  static constexpr std::uint32_t rebias = 127 - bias;
  static constexpr std::uint32_t magnitude_mask = (1u << (Exponent + Mantissa)) - 1;
  static constexpr std::uint32_t first_normal = 1u << Mantissa;
  static constexpr std::uint32_t top_exponent = ((1u << Exponent) - 1) << Mantissa;
  static constexpr std::uint32_t overflow = has_infinity ? top_exponent : magnitude_mask;
  static constexpr std::uint32_t nan = has_infinity ? top_exponent | (first_normal >> 1) : magnitude_mask;

  template <int N>
  RINGREDUCE_INLINE static Vec<float, N> decode(Vec<Stored, N> stored) {
    using Bits = Vec<std::uint32_t, N>;
    const Bits wide = widen<Stored, N>(stored);
    const Bits magnitude = wide & magnitude_mask;
    const Bits sign = (wide >> (Exponent + Mantissa)) << 31;
    Bits bits = (magnitude << shift) + (rebias << 23);
    // A subnormal lacks the leading one: give it one by raising the exponent, and subtract it as a float.
    const Vec<float, N> leading_one = bits_as<float, N>(Bits{} + ((rebias + 1) << 23));
    const Bits subnormal = bits_as<std::uint32_t, N>(bits_as<float, N>(bits + (1u << 23)) - leading_one);
    bits = less<N>(magnitude, first_normal) ? subnormal : bits;
    const Bits special = has_infinity ? (magnitude << shift) | 0x7f800000u : Bits{} + 0x7fc00000u;
    bits = less<N>(magnitude, has_infinity ? top_exponent : magnitude_mask) ? bits : special;
    return bits_as<float, N>(bits | sign);
  }

  // Rounds to nearest even. Every NaN becomes the same one, so that it does not depend on the operands'
  // order.
  template <int N>
  RINGREDUCE_INLINE static Vec<Stored, N> encode(Vec<float, N> value) {
    using Bits = Vec<std::uint32_t, N>;
    const Bits wide = bits_as<std::uint32_t, N>(value);
    const Bits magnitude = wide & 0x7fffffffu;
    const Bits odd = (magnitude >> shift) & 1u;
    const Bits normal = ((magnitude + odd + ((1u << (shift - 1)) - 1)) >> shift) - (rebias << Mantissa);
    // Below the normal numbers the step is constant: adding the float32 whose last bit is that step lets
    // the addition do the rounding, and leaves the pattern in its low bits.
    const Bits step = Bits{} + ((rebias + shift + 1) << 23);
    const Vec<float, N> rounded = bits_as<float, N>(magnitude) + bits_as<float, N>(step);
    const Bits subnormal = bits_as<std::uint32_t, N>(rounded) - step;
    Bits bits = less<N>(magnitude, (rebias + 1) << 23) ? subnormal : normal;
    bits = less<N>(bits, overflow) ? bits : Bits{} + overflow;
    const auto number = has_infinity ? less<N>(magnitude, 0x7f800001u) : less<N>(bits, nan);
    bits = number ? bits | ((wide >> 31) << (Exponent + Mantissa)) : Bits{} + nan;
    return narrow<Stored, N>(bits);
  }

 private:
  // Compares as signed, which older instruction sets have and which is the same below 2^31.
  template <int N>
  RINGREDUCE_INLINE static Vec<std::int32_t, N> less(Vec<std::uint32_t, N> value, std::uint32_t limit) {
    return bits_as<std::int32_t, N>(value) < static_cast<std::int32_t>(limit);
  }
};

}  // namespace
}  // namespace ringreduce

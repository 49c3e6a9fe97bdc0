// NaN, and floats of 8 and 16 bits, converted to and from float32 with arithmetic that every processor has.
#pragma once

#include "lanes.h"  // for the target that the build file compiles for

namespace ringreduce::RINGREDUCE_ISA {

// Positive and without a payload.
template <class V>
RINGREDUCE_INLINE V quiet_nan() {
  using Bits = BitsOf<V>;
  return bits_as<V>(Bits{} +
                    static_cast<LaneOf<Bits>>(sizeof(LaneOf<V>) == 4 ? 0x7fc00000 : 0x7ff8ull << 48));
}

// The NaN that an addition returns depends on the order of its operands, which differs between ranks and
// compilers. Every NaN result therefore becomes the same one.
template <class V>
RINGREDUCE_INLINE V one_nan(V value) {
  const V nan = quiet_nan<V>();
  return value == value ? value : nan;
}

// Compares as signed, which older instruction sets support and which is the same below 2^31.
template <class Bits>
RINGREDUCE_INLINE auto less(Bits value, std::uint32_t limit) {
  return bits_as<Like<std::int32_t, Bits>>(value) < static_cast<std::int32_t>(limit);
}

// A float with one sign bit, `Exponent` and `Mantissa` bits. With infinity it follows IEEE rules. Without
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

  template <class V>
  RINGREDUCE_INLINE static Like<float, V> decode(V stored) {
    using Bits = Like<std::uint32_t, V>;
    const Bits wide = widen(stored);
    const Bits magnitude = wide & magnitude_mask;
    const Bits sign = (wide >> (Exponent + Mantissa)) << 31;
    const Bits special = has_infinity ? (magnitude << shift) | 0x7f800000u : Bits{} + 0x7fc00000u;
    const Bits bits =
        less(magnitude, has_infinity ? top_exponent : magnitude_mask) ? number_of(magnitude) : special;
    return bits_as<Like<float, V>>(bits | sign);
  }

  // Rounds to nearest even. Every NaN becomes the same one, independent of the operands' order.
  template <class V>
  RINGREDUCE_INLINE static Like<Stored, V> encode(V value) {
    using Bits = Like<std::uint32_t, V>;
    const Bits wide = bits_as<Bits>(value);
    const Bits magnitude = wide & 0x7fffffffu;
    const Bits odd = (magnitude >> shift) & 1u;
    const Bits normal = ((magnitude + odd + ((1u << (shift - 1)) - 1)) >> shift) - (rebias << Mantissa);
    // Below the normal numbers the step is constant. Adding the float32 whose last bit is that step makes the
    // addition round, and leaves the pattern in its low bits.
    const Bits step = Bits{} + ((rebias + shift + 1) << 23);
    const Bits subnormal = bits_as<Bits>(bits_as<V>(magnitude) + bits_as<V>(step)) - step;
    Bits bits = less(magnitude, (rebias + 1) << 23) ? subnormal : normal;
    bits = less(bits, overflow) ? bits : Bits{} + overflow;
    const auto is_number = has_infinity ? less(magnitude, 0x7f800001u) : less(bits, nan);
    bits = is_number ? bits | ((wide >> 31) << (Exponent + Mantissa)) : Bits{} + nan;
    return narrow<Stored>(bits);
  }

 private:
  // As float32, without the sign.
  template <class Bits>
  RINGREDUCE_INLINE static Bits number_of(Bits magnitude) {
    using Floats = Like<float, Bits>;
    if constexpr (subnormals_are_cheap) {
      // Read as float32, our exponent is too small by a constant, also for subnormal numbers. One exact
      // product corrects both.
      const Floats power = bits_as<Floats>(Bits{} + ((127 + rebias) << 23));
      return bits_as<Bits>(bits_as<Floats>(magnitude << shift) * power);
    }
    const Bits normal = (magnitude << shift) + (rebias << 23);
    // A subnormal lacks the leading one. Raising the exponent adds it, and a float subtraction removes it.
    const Floats leading_one = bits_as<Floats>(Bits{} + ((rebias + 1) << 23));
    const Bits subnormal = bits_as<Bits>(bits_as<Floats>(normal + (1u << 23)) - leading_one);
    return less(magnitude, first_normal) ? subnormal : normal;
  }
};

}  // namespace ringreduce::RINGREDUCE_ISA

// Floats of 8 bits (and, emulated, of 16), converted to and from float32 by arithmetic that every GPU has.
#pragma once

#include "reduce/cuda/bits.h"

namespace ringreduce::device {

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

  // Read as float32, our exponent is too small by a constant, of subnormal numbers too: one exact product
  // mends both.
  RINGREDUCE_DEVICE static float decode(Stored stored) {
    const std::uint32_t magnitude = stored & magnitude_mask;
    const std::uint32_t sign = static_cast<std::uint32_t>(stored >> (Exponent + Mantissa)) << 31;
    constexpr std::uint32_t power = (127 + rebias) << 23;
    const float number = bits_as<float>(magnitude << shift | sign) * bits_as<float>(power);
    const std::uint32_t special = has_infinity ? magnitude << shift | 0x7f800000u : 0x7fc00000u;
    const bool is_number = magnitude < (has_infinity ? top_exponent : magnitude_mask);
    return is_number ? number : bits_as<float>(special | sign);
  }

  // Rounds to nearest even. Every NaN becomes the same one.
  RINGREDUCE_DEVICE static Stored encode(float value) {
    const std::uint32_t wide = bits_as<std::uint32_t>(value);
    const std::uint32_t magnitude = wide & 0x7fffffffu;
    const std::uint32_t odd = (magnitude >> shift) & 1u;
    const std::uint32_t normal =
        ((magnitude + odd + ((1u << (shift - 1)) - 1)) >> shift) - (rebias << Mantissa);
    // Below the normal numbers the step is constant: adding the float32 whose last bit is that step lets the
    // addition do the rounding, and leaves the pattern in its low bits.
    constexpr std::uint32_t step = (rebias + shift + 1) << 23;
    const std::uint32_t subnormal =
        bits_as<std::uint32_t>(bits_as<float>(magnitude) + bits_as<float>(step)) - step;
    std::uint32_t bits = magnitude < ((rebias + 1) << 23) ? subnormal : normal;
    bits = bits < overflow ? bits : overflow;
    const bool is_number = has_infinity ? magnitude <= 0x7f800000u : bits < nan;
    bits = is_number ? bits | ((wide >> 31) << (Exponent + Mantissa)) : nan;
    return static_cast<Stored>(bits);
  }
};

}  // namespace ringreduce::device

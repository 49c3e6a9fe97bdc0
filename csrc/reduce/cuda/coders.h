// Encoding and decoding of wire formats, a value at a time. The same bits as reduce/kernels/coders.h gives.
#pragma once

#include <bit>

#include "reduce/cuda/formats.h"
#include "reduce/encoding.h"

namespace ringreduce::device {

inline constexpr std::uint32_t magnitude_bits = 0x7fffffffu;
inline constexpr std::uint32_t infinity_bits = 0x7f800000u;

// A code is round(x / scale) + 128, so that 0 is left for NaN.
struct ScaledInt8 {
  using Element = std::uint8_t;
  static constexpr int header = sizeof(float);         // the block's scale
  static constexpr std::uint32_t least = 0x00800000u;  // 2^-126
  // 127 times that is still finite.
  static constexpr std::uint32_t most = std::bit_cast<std::uint32_t>(0x1.fffffep127f / 127) & ~0xffu;

  // largest / 127, rounded to 16 bits, so that its products with codes are exact.
  RINGREDUCE_DEVICE static float scale_for(std::uint32_t largest) {
    const std::uint32_t wanted = (bits_as<std::uint32_t>(bits_as<float>(largest) / 127) + 0x80u) & ~0xffu;
    return bits_as<float>(wanted < least ? least : wanted > most ? most : wanted);
  }

  // Adding the float32 whose last bit is 1 rounds, and leaves the code in the lowest bits. Those of NaN are
  // not the same on every processor: a GPU computes one with all bits set.
  RINGREDUCE_DEVICE static Element encode(float value, float inverse) {
    const float rounded = value * inverse + (0x1.8p23f + 128);
    const bool finite = (bits_as<std::uint32_t>(value) & magnitude_bits) < infinity_bits;
    return static_cast<Element>(finite ? bits_as<std::uint32_t>(rounded) : 0);
  }

  RINGREDUCE_DEVICE static float decode(Element code, float scale) {
    const float number = bits_as<float>(code | 0x4b000000u) - (0x1p23f + 128);
    return code == 0 ? bits_as<float>(0x7fc00000u) : number * scale;
  }
};

// A code is x / scale as a float of 8 bits.
struct ScaledFloat8 {
  using Element = std::uint8_t;
  static constexpr int header = sizeof(float);
  static constexpr int least = 127 - 117;  // exponents: then no decoded value is subnormal
  static constexpr int most = 127 + 119;   // then 448 * scale is finite

  RINGREDUCE_DEVICE static float scale_for(std::uint32_t largest) {
    const int beyond_448 = (largest & 0x7fffffu) > 0x600000u;  // 448 = 1.75 * 2^8
    const int exponent = static_cast<int>(largest >> 23) - 8 + beyond_448;
    const int held = exponent < least ? least : exponent > most ? most : exponent;
    return bits_as<float>(static_cast<std::uint32_t>(held) << 23);
  }

  RINGREDUCE_DEVICE static Element encode(float value, float inverse) {
    return Float8E4M3::encode(value * inverse);
  }
  RINGREDUCE_DEVICE static float decode(Element code, float scale) {
    return Float8E4M3::decode(code) * scale;
  }
};

template <class Format>
struct Cast {
  using Element = typename Format::Element;
  static constexpr int header = 0;
  RINGREDUCE_DEVICE static float scale_for(std::uint32_t) { return 1; }
  RINGREDUCE_DEVICE static Element encode(float value, float) { return Format::encode(value); }
  RINGREDUCE_DEVICE static float decode(Element code, float) { return Format::decode(code); }
};

}  // namespace ringreduce::device

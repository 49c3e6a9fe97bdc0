// Wire formats, lane by lane. A coder has a scale for each block of values, or no header and no scale.
#pragma once

#include <bit>

#include "reduce/arithmetic/formats.h"
#include "reduce/encoding.h"

namespace ringreduce::RINGREDUCE_ISA {

inline constexpr std::uint32_t magnitude_bits = 0x7fffffffu;
inline constexpr std::uint32_t infinity_bits = 0x7f800000u;

// A code is round(x / scale) + 128, which reserves 0 for NaN.
struct ScaledInt8 {
  using Element = std::uint8_t;
  static constexpr int header = sizeof(float);         // the block's scale
  static constexpr std::uint32_t least = 0x00800000u;  // 2^-126
  // The largest value whose product with 127 is finite.
  static constexpr std::uint32_t most = __builtin_bit_cast(std::uint32_t, 0x1.fffffep127f / 127) & ~0xffu;

  // largest / 127, rounded to 16 bits, so that its products with codes are exact. This is precise enough for
  // the block's largest value to become 127, so the decoded block has the same scale.
  RINGREDUCE_INLINE static float scale_for(std::uint32_t largest) {
    const std::uint32_t wanted = (bits_as<std::uint32_t>(bits_as<float>(largest) / 127) + 0x80u) & ~0xffu;
    return bits_as<float>(wanted < least ? least : wanted > most ? most : wanted);
  }

  // Adding the float32 whose last bit is 1 rounds, and leaves the code in the lowest bits. The bits of NaN
  // differ between processors: a GPU computes one with all bits set. `careful`: not all are finite.
  template <bool careful, class V>
  RINGREDUCE_INLINE static Like<Element, V> encode(V value, float inverse) {
    using Bits = Like<std::uint32_t, V>;
    const V rounded = value * inverse + (0x1.8p23f + 128);
    Bits code = bits_as<Bits>(rounded) & 0xffu;
    if constexpr (careful) code = less(bits_as<Bits>(value) & magnitude_bits, infinity_bits) ? code : Bits{};
    return narrow<Element>(code);
  }

  template <class V>
  RINGREDUCE_INLINE static Like<float, V> decode(V stored, float scale) {
    using Floats = Like<float, V>;
    const auto code = widen(stored);
    const Floats number = bits_as<Floats>(code | 0x4b000000u) - (0x1p23f + 128);
    return code == 0 ? quiet_nan<Floats>() : number * scale;
  }
};

// A code is x / scale as a float of 8 bits. The scale of a decoded block can be smaller, and represents its
// values just as exactly.
struct ScaledFloat8 {
  using Element = std::uint8_t;
  static constexpr int header = sizeof(float);
  static constexpr int least = 127 - 117;  // exponents: then no decoded value is subnormal
  static constexpr int most = 127 + 119;   // then 448 * scale is finite

  RINGREDUCE_INLINE static float scale_for(std::uint32_t largest) {
    const int beyond_448 = (largest & 0x7fffffu) > 0x600000u;  // 448 = 1.75 * 2^8
    const int exponent = static_cast<int>(largest >> 23) - 8 + beyond_448;
    // Written so that compilers branch, which a processor predicts: a minimum would delay the first code.
    return bits_as<float>(static_cast<std::uint32_t>(exponent < least  ? least
                                                     : exponent > most ? most
                                                                       : exponent)
                          << 23);
  }

  template <bool>
  RINGREDUCE_INLINE static auto encode(auto value, float inverse) {
    return Float8E4M3::encode(value * inverse);
  }
  RINGREDUCE_INLINE static auto decode(auto code, float scale) { return Float8E4M3::decode(code) * scale; }
};

template <class Format>
struct Cast {
  using Element = typename Format::Element;
  static constexpr int header = 0;
  RINGREDUCE_INLINE static float scale_for(std::uint32_t) { return 1; }
  template <bool>
  RINGREDUCE_INLINE static auto encode(auto value, float) {
    return Format::encode(value);
  }
  RINGREDUCE_INLINE static auto decode(auto code, float) { return Format::decode(code); }
};

// Calls visit(coder) for an encoding.
RINGREDUCE_ANYWHERE
template <class Visit>
constexpr void visit_coder(Encoding wire, Visit visit) {
  switch (wire) {
    case Encoding::none:
      return;
    case Encoding::bf16:
      return visit(Cast<BFloat16>{});
    case Encoding::fp16:
      return visit(Cast<Float16>{});
    case Encoding::int8:
      return visit(ScaledInt8{});
    case Encoding::fp8:
      return visit(ScaledFloat8{});
  }
}

}  // namespace ringreduce::RINGREDUCE_ISA

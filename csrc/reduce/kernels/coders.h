// Encoding and decoding of wire formats, a block at a time.
#pragma once

#include "reduce/encoding.h"
#include "reduce/kernels/formats.h"

namespace ringreduce {
namespace {

constexpr int float_lanes = vector_bytes / sizeof(float);
constexpr std::uint32_t magnitude_bits = 0x7fffffffu;
constexpr std::int32_t infinity_bits = 0x7f800000;
using Floats = Vec<float, float_lanes>;
using Words = Vec<std::uint32_t, float_lanes>;
using Ints = Vec<std::int32_t, float_lanes>;
using Codes = Vec<std::uint8_t, float_lanes>;

RINGREDUCE_INLINE float as_float(std::uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

RINGREDUCE_INLINE Ints magnitude_of(Floats value) {
  return bits_as<std::int32_t, float_lanes>(bits_as<std::uint32_t, float_lanes>(value) & magnitude_bits);
}

template <int N>
RINGREDUCE_INLINE std::int32_t largest_lane(Vec<std::int32_t, N> value) {
  if constexpr (N == 1) {
    return value[0];
  } else {
    Vec<std::int32_t, N / 2> half[2];
    __builtin_memcpy(half, &value, sizeof value);
    return largest_lane<N / 2>(half[0] > half[1] ? half[0] : half[1]);
  }
}

// The largest magnitude in a block, as bits, which order magnitudes as their values do; with `careful`, of
// its finite values.
template <bool careful>
RINGREDUCE_INLINE std::int32_t largest_in(const char* from) {
  constexpr int rows = 4;
  Ints largest[rows] = {};
  for (std::size_t at = 0; at < encoded_block; at += rows * float_lanes) {
    for (int row = 0; row < rows; ++row) {
      const char* place = from + (at + row * float_lanes) * sizeof(float);
      Ints found = magnitude_of(load<float, float_lanes, float_lanes>(place));
      if constexpr (careful) found = found < infinity_bits ? found : Ints{};
      largest[row] = found > largest[row] ? found : largest[row];
    }
  }
  for (int row = 1; row < rows; ++row) largest[0] = largest[row] > largest[0] ? largest[row] : largest[0];
  return largest_lane<float_lanes>(largest[0]);
}

// A code is round(x / scale) + 128, so that 0 is left for NaN.
struct ScaledInt8 {
  static constexpr std::uint32_t least = 0x00800000u;  // 2^-126
  // 127 times that is still finite.
  static constexpr std::uint32_t most = __builtin_bit_cast(std::uint32_t, 0x1.fffffep127f / 127) & ~0xffu;

  // Rounded to 16 bits, so that its products with codes are exact. That is near enough to x / 127 for the
  // largest of the block to become 127, by which the decoded block finds the same scale.
  static float scale_for(std::int32_t largest) {
    const std::uint32_t wanted =
        (__builtin_bit_cast(std::uint32_t, as_float(largest) / 127) + 0x80u) & ~0xffu;
    return as_float(wanted < least ? least : wanted > most ? most : wanted);
  }

  // Adding the float32 whose last bit is 1 rounds, and leaves the code in the lowest bits.
  template <bool careful>
  RINGREDUCE_INLINE static Codes encode(Floats value, float inverse) {
    const Floats rounded = value * inverse + (0x1.8p23f + 128);
    Words code = bits_as<std::uint32_t, float_lanes>(rounded) & 0xffu;
    if constexpr (careful) code = magnitude_of(value) < infinity_bits ? code : Words{};
    return narrow<std::uint8_t, float_lanes>(code);
  }

  RINGREDUCE_INLINE static Floats decode(Codes stored, float scale) {
    const Words code = widen<std::uint8_t, float_lanes>(stored);
    const Floats number = bits_as<float, float_lanes>(code | 0x4b000000u) - (0x1p23f + 128);
    const Floats nan = Floats{} + __builtin_nanf("");
    return code == 0 ? nan : number * scale;
  }
};

// A code is x / scale as a float of 8 bits. The scale of a decoded block can be a smaller one, by which its
// values are as exact.
struct ScaledFloat8 {
  static constexpr int least = 127 - 117;  // exponents: then no decoded value is subnormal
  static constexpr int most = 127 + 119;   // then 448 * scale is finite

  static float scale_for(std::int32_t largest) {
    const int beyond_448 = (largest & 0x7fffff) > 0x600000;  // 448 = 1.75 * 2^8
    const int exponent = (largest >> 23) - 8 + beyond_448;
    return as_float(static_cast<std::uint32_t>(exponent < least  ? least
                                               : exponent > most ? most
                                                                 : exponent)
                    << 23);
  }

  template <bool>
  RINGREDUCE_INLINE static Codes encode(Floats value, float inverse) {
    return Float8E4M3::encode<float_lanes>(value * inverse);
  }

  RINGREDUCE_INLINE static Floats decode(Codes stored, float scale) {
    return Float8E4M3::decode<float_lanes>(stored) * scale;
  }
};

// A block is its scale and then a byte for each value.
template <class Code>
struct Scaled {
  static constexpr std::size_t header = sizeof(float), element = 1;

  template <bool careful>
  RINGREDUCE_INLINE static void encode_as(char* to, const char* from, std::int32_t largest) {
    const float scale = Code::scale_for(largest), inverse = 1 / scale;
    __builtin_memcpy(to, &scale, sizeof scale);
    for (std::size_t at = 0; at < encoded_block; at += float_lanes) {
      const Floats value = load<float, float_lanes, float_lanes>(from + at * sizeof(float));
      store<std::uint8_t, float_lanes, float_lanes>(to + header + at,
                                                    Code::template encode<careful>(value, inverse));
    }
  }

  RINGREDUCE_INLINE static void encode(char* to, const char* from) {
    const std::int32_t largest = largest_in<false>(from);
    if (largest < infinity_bits) [[likely]] {
      encode_as<false>(to, from, largest);
    } else {
      encode_as<true>(to, from, largest_in<true>(from));
    }
  }

  RINGREDUCE_INLINE static void decode(char* to, const char* from) {
    float scale;
    __builtin_memcpy(&scale, from, sizeof scale);
    for (std::size_t at = 0; at < encoded_block; at += float_lanes) {
      const Codes stored = load<std::uint8_t, float_lanes, float_lanes>(from + header + at);
      store<float, float_lanes, float_lanes>(to + at * sizeof(float), Code::decode(stored, scale));
    }
  }
};

template <class Format>
struct Cast {
  using Element = typename Format::Element;
  static constexpr std::size_t header = 0, element = sizeof(Element);

  RINGREDUCE_INLINE static void encode(char* to, const char* from) {
    for (std::size_t at = 0; at < encoded_block; at += float_lanes) {
      const Floats value = load<float, float_lanes, float_lanes>(from + at * sizeof(float));
      store<Element, float_lanes, float_lanes>(to + at * element,
                                               Format::template encode<float_lanes>(value));
    }
  }

  RINGREDUCE_INLINE static void decode(char* to, const char* from) {
    for (std::size_t at = 0; at < encoded_block; at += float_lanes) {
      const auto stored = load<Element, float_lanes, float_lanes>(from + at * element);
      store<float, float_lanes, float_lanes>(to + at * sizeof(float),
                                             Format::template decode<float_lanes>(stored));
    }
  }
};

// The last block is filled up with zeros, which change no scale.
template <class Coder>
void encode_blocks(void* to, const float* from, std::size_t count) {
  constexpr std::size_t coded = Coder::header + encoded_block * Coder::element;
  auto* out = static_cast<char*>(to);
  const auto* in = reinterpret_cast<const char*>(from);
  for (; count >= encoded_block; count -= encoded_block, out += coded, in += encoded_block * sizeof(float)) {
    Coder::encode(out, in);
  }
  if (count == 0) return;
  char values[encoded_block * sizeof(float)] = {}, codes[coded];
  __builtin_memcpy(values, in, count * sizeof(float));
  Coder::encode(codes, values);
  __builtin_memcpy(out, codes, Coder::header + count * Coder::element);
}

template <class Coder>
void decode_blocks(float* to, const void* from, std::size_t count) {
  constexpr std::size_t coded = Coder::header + encoded_block * Coder::element;
  auto* out = reinterpret_cast<char*>(to);
  const auto* in = static_cast<const char*>(from);
  for (; count >= encoded_block; count -= encoded_block, out += encoded_block * sizeof(float), in += coded) {
    Coder::decode(out, in);
  }
  if (count == 0) return;
  char values[encoded_block * sizeof(float)], codes[coded] = {};
  __builtin_memcpy(codes, in, Coder::header + count * Coder::element);
  Coder::decode(values, codes);
  __builtin_memcpy(out, values, count * sizeof(float));
}

template <class Coder>
constexpr Codec codec = {encode_blocks<Coder>, decode_blocks<Coder>};

}  // namespace
}  // namespace ringreduce

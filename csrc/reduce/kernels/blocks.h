// Encodes and decodes wire formats, a block at a time.
#pragma once

#include "reduce/arithmetic/coders.h"

namespace ringreduce::RINGREDUCE_ISA {

constexpr int float_lanes = vector_bytes / sizeof(float);
using Floats = Vec<float, float_lanes>;
using Ints = Vec<std::int32_t, float_lanes>;

RINGREDUCE_INLINE Floats load_floats(const char* from, std::size_t at) {
  return load<float, float_lanes, float_lanes>(from + at * sizeof(float));
}

template <class V>
RINGREDUCE_INLINE std::int32_t largest_lane(V value) {
  if constexpr (lanes_of<V> == 1) {
    return value[0];
  } else {
    Vec<std::int32_t, lanes_of<V> / 2> half[2];
    __builtin_memcpy(half, &value, sizeof value);
    return largest_lane(half[0] > half[1] ? half[0] : half[1]);
  }
}

// The largest magnitude in a block, as bits, which order magnitudes like their values; with `careful`, of its
// finite values.
template <bool careful>
RINGREDUCE_INLINE std::int32_t largest_in(const char* from) {
  constexpr int rows = 4;
  Ints largest[rows] = {};
  for (std::size_t at = 0; at < encoded_block; at += rows * float_lanes) {
    for (int row = 0; row < rows; ++row) {
      Ints found =
          bits_as<Ints>(bits_as<BitsOf<Floats>>(load_floats(from, at + row * float_lanes)) & magnitude_bits);
      if constexpr (careful) found = less(found, infinity_bits) ? found : Ints{};
      largest[row] = found > largest[row] ? found : largest[row];
    }
  }
  for (int row = 1; row < rows; ++row) largest[0] = largest[row] > largest[0] ? largest[row] : largest[0];
  return largest_lane(largest[0]);
}

// A block is its header, followed by a code for each value.
template <class Coder>
struct Block {
  using Element = typename Coder::Element;
  static constexpr std::size_t value_bytes = encoded_block * sizeof(float);
  static constexpr std::size_t bytes = Coder::header + encoded_block * sizeof(Element);

  template <bool careful>
  RINGREDUCE_INLINE static void encode_as(char* to, const char* from, std::int32_t largest) {
    const float scale = Coder::scale_for(largest), inverse = 1 / scale;
    __builtin_memcpy(to, &scale, Coder::header);
    for (std::size_t at = 0; at < encoded_block; at += float_lanes) {
      store<Element, float_lanes, float_lanes>(
          to + Coder::header + at * sizeof(Element),
          Coder::template encode<careful>(load_floats(from, at), inverse));
    }
  }

  RINGREDUCE_INLINE static void encode(char* to, const char* from) {
    const std::int32_t largest = Coder::header > 0 ? largest_in<false>(from) : 0;
    if (less(largest, infinity_bits)) [[likely]] {
      encode_as<false>(to, from, largest);
    } else {
      encode_as<true>(to, from, largest_in<true>(from));
    }
  }

  RINGREDUCE_INLINE static void decode(char* to, const char* from) {
    float scale = 1;
    __builtin_memcpy(&scale, from, Coder::header);
    for (std::size_t at = 0; at < encoded_block; at += float_lanes) {
      const auto stored =
          load<Element, float_lanes, float_lanes>(from + Coder::header + at * sizeof(Element));
      store<float, float_lanes, float_lanes>(to + at * sizeof(float), Coder::decode(stored, scale));
    }
  }
};

// The last block is padded with zeros, which do not change a scale.
template <class Coder>
void encode_blocks(void* to, const float* from, std::size_t count) {
  using Whole = Block<Coder>;
  auto* out = static_cast<char*>(to);
  const auto* in = reinterpret_cast<const char*>(from);
  for (; count >= encoded_block; count -= encoded_block, out += Whole::bytes, in += Whole::value_bytes) {
    Whole::encode(out, in);
  }
  if (count == 0) return;
  char values[Whole::value_bytes] = {}, codes[Whole::bytes];
  __builtin_memcpy(values, in, count * sizeof(float));
  Whole::encode(codes, values);
  __builtin_memcpy(out, codes, Coder::header + count * sizeof(typename Coder::Element));
}

template <class Coder>
void decode_blocks(float* to, const void* from, std::size_t count) {
  using Whole = Block<Coder>;
  auto* out = reinterpret_cast<char*>(to);
  const auto* in = static_cast<const char*>(from);
  for (; count >= encoded_block; count -= encoded_block, out += Whole::value_bytes, in += Whole::bytes) {
    Whole::decode(out, in);
  }
  if (count == 0) return;
  char values[Whole::value_bytes], codes[Whole::bytes] = {};
  __builtin_memcpy(codes, in, Coder::header + count * sizeof(typename Coder::Element));
  Whole::decode(values, codes);
  __builtin_memcpy(out, values, count * sizeof(float));
}

}  // namespace ringreduce::RINGREDUCE_ISA

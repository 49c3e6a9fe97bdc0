// float16 <-> float32 with the conversion instructions that every arm64 processor has.
#pragma once

#include "lanes.h"
#include "reduce/arithmetic/floats.h"

namespace ringreduce::RINGREDUCE_ISA {

struct Float16 {
  using Element = std::uint16_t;
  using Lane = float;

  template <class V>
  RINGREDUCE_INLINE static Like<float, V> decode(V half) {
    return bits_as<Like<float, V>>(vcvt_f32_f16(bits_as<float16x4_t>(half)));
  }
  template <class V>
  RINGREDUCE_INLINE static Like<std::uint16_t, V> encode(V value) {
    return convert(one_nan(value));
  }
  template <class V>
  RINGREDUCE_INLINE static Like<std::uint16_t, V> convert(V value) {
    return bits_as<Like<std::uint16_t, V>>(vcvt_f16_f32(bits_as<float32x4_t>(value)));
  }
};

}  // namespace ringreduce::RINGREDUCE_ISA

// In addition to NEON's: sums of float16 (FEAT_FP16), and float32 rounded to bfloat16 (FEAT_BF16).
#pragma once

#include "reduce/kernels/arm/lanes.h"

namespace ringreduce::RINGREDUCE_ISA {

// Of the bits of float16.
template <class V>
RINGREDUCE_INLINE V sum_of_halves(V a, V b) {
  return bits_as<V>(vaddq_f16(bits_as<float16x8_t>(a), bits_as<float16x8_t>(b)));
}

// The bits of bfloat16.
template <class V>
RINGREDUCE_INLINE Like<std::uint16_t, V> as_bfloat16(V value) {
  return bits_as<Like<std::uint16_t, V>>(vcvt_bf16_f32(bits_as<float32x4_t>(value)));
}

// Of each pair of lanes, the one in the lower half of a word and the other in the upper one.
template <class V>
RINGREDUCE_INLINE Like<std::uint32_t, V> as_pairs_of_bfloat16(V low, V high) {
  const auto lower = bits_as<uint16x4_t>(as_bfloat16(low)), upper = bits_as<uint16x4_t>(as_bfloat16(high));
  return bits_as<Like<std::uint32_t, V>>(vcombine_u16(vzip1_u16(lower, upper), vzip2_u16(lower, upper)));
}

}  // namespace ringreduce::RINGREDUCE_ISA

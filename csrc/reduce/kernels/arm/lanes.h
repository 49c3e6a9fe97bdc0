// 8- and 16-bit integers <-> 32-bit ones, with NEON's instructions.
#pragma once

#include <arm_neon.h>

#include "reduce/kernels/vector.h"

namespace ringreduce::RINGREDUCE_ISA {

template <class V>
RINGREDUCE_INLINE Vec<std::uint32_t, 4> widen(V value) {
  static_assert(lanes_of<V> == 4);
  uint16x4_t shorts;
  if constexpr (sizeof(LaneOf<V>) == 2) {
    shorts = bits_as<uint16x4_t>(value);
  } else {
    shorts = vget_low_u16(vmovl_u8(vcreate_u8(bits_as<std::uint32_t>(value))));
  }
  return bits_as<Vec<std::uint32_t, 4>>(vmovl_u16(shorts));
}

// For values that fit.
template <class T, class V>
RINGREDUCE_INLINE Vec<T, 4> narrow(V value) {
  const uint16x4_t shorts = vmovn_u32(bits_as<uint32x4_t>(value));
  if constexpr (sizeof(T) == 2) {
    return bits_as<Vec<T, 4>>(shorts);
  } else {
    const uint8x8_t bytes = vmovn_u16(vcombine_u16(shorts, shorts));
    return bits_as<Vec<T, 4>>(vget_lane_u32(vreinterpret_u32_u8(bytes), 0));
  }
}

}  // namespace ringreduce::RINGREDUCE_ISA

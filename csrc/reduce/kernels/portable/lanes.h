// 8- and 16-bit integers <-> 32-bit ones by shuffling whole registers of 16 bytes, because compilers generate
// many more instructions for __builtin_convertvector. For little-endian machines.
#pragma once

#include "reduce/kernels/vector.h"

namespace ringreduce::RINGREDUCE_ISA {

using Bytes16 = Vec<std::uint8_t, 16>;
using Shorts8 = Vec<std::uint16_t, 8>;
using Words4 = Vec<std::uint32_t, 4>;

template <class V>
RINGREDUCE_INLINE Words4 widen(V value) {
  static_assert(lanes_of<V> == 4 && vector_bytes == 16);
  using Part = UnsignedOf<sizeof value>;
  Vec<Part, 16 / sizeof(Part)> low = {bits_as<Vec<Part, 1>>(value)[0]};
  Shorts8 shorts = bits_as<Shorts8>(low);
  if constexpr (sizeof(LaneOf<V>) == 1) {
    shorts = bits_as<Shorts8>(__builtin_shufflevector(bits_as<Bytes16>(low), Bytes16{}, 0, 16, 1, 17, 2, 18,
                                                      3, 19, 4, 20, 5, 21, 6, 22, 7, 23));
  }
  return bits_as<Words4>(__builtin_shufflevector(shorts, Shorts8{}, 0, 8, 1, 9, 2, 10, 3, 11));
}

// For values that fit.
template <class T>
RINGREDUCE_INLINE Vec<T, 4> narrow(Words4 value) {
  static_assert(vector_bytes == 16);
  const Shorts8 shorts = bits_as<Shorts8>(value);
  const Shorts8 even = __builtin_shufflevector(shorts, shorts, 0, 2, 4, 6, 0, 2, 4, 6);
  const auto spread = bits_as<Vec<std::uint64_t, 2>>(even);
  if constexpr (sizeof(T) == 2) {
    return bits_as<Vec<T, 4>>(Vec<std::uint64_t, 1>{spread[0]});
  } else {
    // Values below 256 lie in the even bytes; each next one moves down beside its neighbour.
    const std::uint64_t pairs = (spread[0] | spread[0] >> 8) & 0x0000ffff0000ffffu;
    return bits_as<Vec<T, 4>>(Vec<std::uint32_t, 1>{static_cast<std::uint32_t>(pairs | pairs >> 16)});
  }
}

}  // namespace ringreduce::RINGREDUCE_ISA

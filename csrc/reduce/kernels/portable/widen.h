// 8- and 16-bit integers <-> 32-bit ones by shuffling whole registers of 16 bytes: compilers make many more
// instructions of __builtin_convertvector. Written for little-endian machines.
#pragma once

#include "reduce/kernels/vector.h"

namespace ringreduce {
namespace {

using Bytes16 = Vec<std::uint8_t, 16>;
using Shorts8 = Vec<std::uint16_t, 8>;

template <class T, int N>
RINGREDUCE_INLINE Vec<std::uint32_t, N> widen(Vec<T, N> value) {
  static_assert(N == 4 && vector_bytes == 16);
  using Part = typename UnsignedOf<sizeof value>::type;
  Vec<Part, 16 / sizeof(Part)> low = {bits_as<Part, 1>(value)[0]};
  Shorts8 shorts = bits_as<std::uint16_t, 8>(low);
  if constexpr (sizeof(T) == 1) {
    shorts = bits_as<std::uint16_t, 8>(__builtin_shufflevector(
        bits_as<std::uint8_t, 16>(low), Bytes16{}, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23));
  }
  return bits_as<std::uint32_t, N>(__builtin_shufflevector(shorts, Shorts8{}, 0, 8, 1, 9, 2, 10, 3, 11));
}

// For values that fit.
template <class T, int N>
RINGREDUCE_INLINE Vec<T, N> narrow(Vec<std::uint32_t, N> value) {
  static_assert(N == 4 && vector_bytes == 16);
  const Shorts8 shorts = bits_as<std::uint16_t, 8>(value);
  const Shorts8 even = __builtin_shufflevector(shorts, shorts, 0, 2, 4, 6, 0, 2, 4, 6);
  if constexpr (sizeof(T) == 2) {
    return bits_as<T, N>(Vec<std::uint64_t, 1>{bits_as<std::uint64_t, 2>(even)[0]});
  } else {
    // Values below 256 lie in the even bytes: the next one moves down beside each.
    const Vec<std::uint64_t, 2> spread = bits_as<std::uint64_t, 2>(even);
    const std::uint64_t pairs = (spread[0] | spread[0] >> 8) & 0x0000ffff0000ffffu;
    return bits_as<T, N>(Vec<std::uint32_t, 1>{static_cast<std::uint32_t>(pairs | pairs >> 16)});
  }
}

}  // namespace
}  // namespace ringreduce

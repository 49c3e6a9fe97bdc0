// 8- and 16-bit integers <-> 32-bit ones, with x86-64's instructions (AVX2, AVX-512): GCC 12 generates many
// more for __builtin_convertvector.
#pragma once

#include <immintrin.h>

#include "reduce/kernels/vector.h"

namespace ringreduce::RINGREDUCE_ISA {

using Long2 = Vec<long long, 2>;
using Long4 = Vec<long long, 4>;
using Long8 = Vec<long long, 8>;

// The lanes at the bottom of a register of 16 bytes.
template <class V>
RINGREDUCE_INLINE __m128i low_part(V value) {
  if constexpr (sizeof value == 16) {
    return bits_as<Long2>(value);
  } else {
    using Part = UnsignedOf<sizeof value>;
    return bits_as<Long2>(Vec<Part, 16 / sizeof(Part)>{bits_as<Vec<Part, 1>>(value)[0]});
  }
}

template <class V>
RINGREDUCE_INLINE V from_low_part(__m128i value) {
  if constexpr (sizeof(V) == 16) {
    return bits_as<V>(value);
  } else {
    using Part = UnsignedOf<sizeof(V)>;
    return bits_as<V>(Vec<Part, 1>{bits_as<Vec<Part, 16 / sizeof(Part)>>(value)[0]});
  }
}

template <class V>
RINGREDUCE_INLINE Like<std::uint32_t, V> widen(V value) {
  using Wide = Like<std::uint32_t, V>;
  constexpr bool is_short = sizeof(LaneOf<V>) == 2;
  if constexpr (lanes_of<V> == 16 && is_short) {
    return bits_as<Wide>(_mm512_maskz_cvtepu16_epi32(0xffff, bits_as<Long4>(value)));
  } else if constexpr (lanes_of<V> == 16) {
    return bits_as<Wide>(_mm512_maskz_cvtepu8_epi32(0xffff, low_part(value)));
  } else if constexpr (lanes_of<V> == 8) {
    const __m128i low = low_part(value);
    return bits_as<Wide>(is_short ? _mm256_cvtepu16_epi32(low) : _mm256_cvtepu8_epi32(low));
  } else {
    static_assert(lanes_of<V> == 4);
    const __m128i low = low_part(value);
    return bits_as<Wide>(is_short ? _mm_cvtepu16_epi32(low) : _mm_cvtepu8_epi32(low));
  }
}

// For values that fit.
template <class T, class V>
RINGREDUCE_INLINE Like<T, V> narrow(V value) {
  using Narrow = Like<T, V>;
  if constexpr (lanes_of<V> == 16 && sizeof(T) == 2) {
    return bits_as<Narrow>(_mm512_maskz_cvtepi32_epi16(0xffff, bits_as<Long8>(value)));
  } else if constexpr (lanes_of<V> == 16) {
    return bits_as<Narrow>(_mm512_maskz_cvtepi32_epi8(0xffff, bits_as<Long8>(value)));
  } else {
    __m128i half;  // each value in 16 bits
    if constexpr (lanes_of<V> == 8) {
      const __m256i whole = bits_as<Long4>(value);
      half = _mm_packus_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    } else {
      static_assert(lanes_of<V> == 4);
      half = _mm_packus_epi32(bits_as<Long2>(value), _mm_setzero_si128());
    }
    return from_low_part<Narrow>(sizeof(T) == 2 ? half : _mm_packus_epi16(half, half));
  }
}

}  // namespace ringreduce::RINGREDUCE_ISA

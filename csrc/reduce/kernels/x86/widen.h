// 8- and 16-bit integers <-> 32-bit ones, with x86-64's instructions for it (AVX2, AVX-512): GCC 12 makes
// many more of __builtin_convertvector.
#pragma once

#include <immintrin.h>

#include "reduce/kernels/vector.h"

namespace ringreduce {
namespace {

// The N elements at the bottom of a register of 16 bytes.
template <class T, int N>
RINGREDUCE_INLINE __m128i low_part(Vec<T, N> value) {
  if constexpr (sizeof value == 16) {
    return bits_as<long long, 2>(value);
  } else {
    using Part = typename UnsignedOf<sizeof value>::type;
    return bits_as<long long, 2>(Vec<Part, 16 / sizeof(Part)>{bits_as<Part, 1>(value)[0]});
  }
}

template <class T, int N>
RINGREDUCE_INLINE Vec<T, N> from_low_part(__m128i value) {
  if constexpr (N * sizeof(T) == 16) {
    return bits_as<T, N>(value);
  } else {
    using Part = typename UnsignedOf<N * sizeof(T)>::type;
    return bits_as<T, N>(Vec<Part, 1>{bits_as<Part, 16 / sizeof(Part)>(value)[0]});
  }
}

template <class T, int N>
RINGREDUCE_INLINE Vec<std::uint32_t, N> widen(Vec<T, N> value) {
  if constexpr (N == 16 && sizeof(T) == 2) {
    return bits_as<std::uint32_t, N>(_mm512_maskz_cvtepu16_epi32(0xffff, bits_as<long long, 4>(value)));
  } else if constexpr (N == 16) {
    return bits_as<std::uint32_t, N>(_mm512_maskz_cvtepu8_epi32(0xffff, low_part<T, N>(value)));
  } else if constexpr (N == 8) {
    const __m128i low = low_part<T, N>(value);
    return bits_as<std::uint32_t, N>(sizeof(T) == 2 ? _mm256_cvtepu16_epi32(low) : _mm256_cvtepu8_epi32(low));
  } else {
    static_assert(N == 4);
    const __m128i low = low_part<T, N>(value);
    return bits_as<std::uint32_t, N>(sizeof(T) == 2 ? _mm_cvtepu16_epi32(low) : _mm_cvtepu8_epi32(low));
  }
}

// For values that fit.
template <class T, int N>
RINGREDUCE_INLINE Vec<T, N> narrow(Vec<std::uint32_t, N> value) {
  if constexpr (N == 16 && sizeof(T) == 2) {
    return bits_as<T, N>(_mm512_maskz_cvtepi32_epi16(0xffff, bits_as<long long, 8>(value)));
  } else if constexpr (N == 16) {
    return bits_as<T, N>(_mm512_maskz_cvtepi32_epi8(0xffff, bits_as<long long, 8>(value)));
  } else {
    __m128i half;  // each value in 16 bits
    if constexpr (N == 8) {
      const __m256i whole = bits_as<long long, 4>(value);
      half = _mm_packus_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    } else {
      static_assert(N == 4);
      half = _mm_packus_epi32(bits_as<long long, 2>(value), _mm_setzero_si128());
    }
    return from_low_part<T, N>(sizeof(T) == 2 ? half : _mm_packus_epi16(half, half));
  }
}

}  // namespace
}  // namespace ringreduce

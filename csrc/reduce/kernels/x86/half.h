// float16 <-> float32 with the conversion instructions of x86-64 (F16C, AVX-512).
#pragma once

#include <immintrin.h>

#include "widen.h"

namespace ringreduce {
namespace {

template <int N>
RINGREDUCE_INLINE Vec<float, N> half_to_float(Vec<std::uint16_t, N> half) {
  if constexpr (N == 16) {
    // The form with a mask of all lanes, as the one without draws a false warning from GCC 12.
    return bits_as<float, N>(_mm512_maskz_cvtph_ps(0xffff, bits_as<long long, N / 4>(half)));
  } else if constexpr (N == 8) {
    return bits_as<float, N>(_mm256_cvtph_ps(bits_as<long long, N / 4>(half)));
  } else {
    static_assert(N == 4);
    return _mm_cvtph_ps(low_part<std::uint16_t, N>(half));
  }
}

template <int N>
RINGREDUCE_INLINE Vec<std::uint16_t, N> float_to_half(Vec<float, N> value) {
  constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  if constexpr (N == 16) {
    return bits_as<std::uint16_t, N>(_mm512_maskz_cvtps_ph(0xffff, value, nearest));
  } else if constexpr (N == 8) {
    return bits_as<std::uint16_t, N>(_mm256_cvtps_ph(value, nearest));
  } else {
    static_assert(N == 4);
    return from_low_part<std::uint16_t, N>(_mm_cvtps_ph(value, nearest));
  }
}

}  // namespace
}  // namespace ringreduce

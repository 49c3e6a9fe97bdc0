// float16 <-> float32 with the conversion instructions of x86-64 (F16C, AVX-512).
#pragma once

#include "lanes.h"
#include "reduce/arithmetic/floats.h"

namespace ringreduce::RINGREDUCE_ISA {

struct Float16 {
  using Element = std::uint16_t;
  using Lane = float;

  template <class V>
  RINGREDUCE_INLINE static Like<float, V> decode(V half) {
    using Floats = Like<float, V>;
    if constexpr (lanes_of<V> == 16) {
      // The form with a mask of all lanes: the one without gets a false warning from GCC 12.
      return bits_as<Floats>(_mm512_maskz_cvtph_ps(0xffff, bits_as<Long4>(half)));
    } else if constexpr (lanes_of<V> == 8) {
      return bits_as<Floats>(_mm256_cvtph_ps(bits_as<Long2>(half)));
    } else {
      static_assert(lanes_of<V> == 4);
      return _mm_cvtph_ps(low_part(half));
    }
  }

  template <class V>
  RINGREDUCE_INLINE static Like<std::uint16_t, V> encode(V value) {
    return convert(one_nan(value));
  }
  template <class V>
  RINGREDUCE_INLINE static Like<std::uint16_t, V> convert(V value) {
    using Halves = Like<std::uint16_t, V>;
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    if constexpr (lanes_of<V> == 16) {
      return bits_as<Halves>(_mm512_maskz_cvtps_ph(0xffff, value, nearest));
    } else if constexpr (lanes_of<V> == 8) {
      return bits_as<Halves>(_mm256_cvtps_ph(value, nearest));
    } else {
      static_assert(lanes_of<V> == 4);
      return from_low_part<Halves>(_mm_cvtps_ph(value, nearest));
    }
  }
};

}  // namespace ringreduce::RINGREDUCE_ISA

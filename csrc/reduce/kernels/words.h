// Small floats that are combined as parts of 32-bit words: none of them moves to another word on the way to
// float32 and back, and each instruction on whole words serves several.
#pragma once

#include <utility>

#include "reduce/arithmetic/combinations.h"
#include "reduce/kernels/loops.h"

namespace ringreduce::RINGREDUCE_ISA {

// The bfloat16 numbers of a register of 32-bit words, those of the upper halves and of the lower ones. No
// element moves to another word.
template <int N>
struct Halves {
  Vec<float, N> low, high;
  RINGREDUCE_INLINE Halves operator+(Halves other) const { return {low + other.low, high + other.high}; }
  RINGREDUCE_INLINE Halves operator*(Halves other) const { return {low * other.low, high * other.high}; }
  RINGREDUCE_INLINE Halves operator*(float factor) const { return {low * factor, high * factor}; }
};

struct PairsOfBFloat16 {
  using Element = std::uint32_t;
  using Lane = float;
  static constexpr std::uint32_t upper = 0xffff0000;

  template <class V>
  RINGREDUCE_INLINE static Halves<lanes_of<V>> decode(V stored) {
    using Floats = Like<float, V>;
    return {bits_as<Floats>(stored << 16), bits_as<Floats>(stored & upper)};
  }
  template <int N>
  RINGREDUCE_INLINE static Vec<Element, N> encode(Halves<N> value) {
    if constexpr (requires { as_pairs_of_bfloat16(value.low, value.high); }) {
      return as_pairs_of_bfloat16(one_nan(value.low), one_nan(value.high));
    } else {
      return rounded(value.low) >> 16 | (rounded(value.high) & upper);
    }
  }
  // As BFloat16 has it: in the upper half.
  template <class V>
  RINGREDUCE_INLINE static Like<Element, V> rounded(V value) {
    using Bits = Like<Element, V>;
    const Bits bits = bits_as<Bits>(value);
    return value == value ? bits + 0x7fffu + ((bits >> 16) & 1u) : Bits{} + 0x7fc00000u;
  }
};
template <int N>
struct DecodedOf<PairsOfBFloat16, N> {
  using type = Halves<N>;
};

// Whether the processor converts float16. Where it does not, Float16 is arithmetic, and float8's own is
// shorter.
template <class Format>
inline constexpr bool is_arithmetic = false;
template <class Stored, int Exponent, int Mantissa, bool has_infinity>
inline constexpr bool is_arithmetic<SmallFloat<Stored, Exponent, Mantissa, has_infinity>> = true;

template <int first, class V, int... lane>
RINGREDUCE_INLINE Like<LaneOf<V>, Vec<float, sizeof...(lane)>> part(V value,
                                                                    std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(value, value, (first + lane)...);
}
template <class V, int... lane>
RINGREDUCE_INLINE auto both(V low, V high, std::integer_sequence<int, lane...>) {
  return __builtin_shufflevector(low, high, lane...);
}

// The float8 numbers of a register of 32-bit words: those of the odd bytes, then those of the even ones.
template <int N>
struct Quarters {
  Vec<float, N> of[4];
  RINGREDUCE_INLINE Quarters operator+(const Quarters& other) const {
    return {{of[0] + other.of[0], of[1] + other.of[1], of[2] + other.of[2], of[3] + other.of[3]}};
  }
};

// Sums of float8, which is float16 without its last bits, and with E4M3 without its first exponent bit: the
// float16 of the same fields is smaller by 2^8, as is the sum then. The processor converts float16.
// `of_two`: sums of two numbers, which float16 holds or rounds to no number half way between two float8.
template <class Format, bool of_two>
struct FoursOfFloat8 {
  using Element = std::uint32_t;
  using Lane = float;
  static constexpr bool is_shorter = Format::magnitude_mask == 0x7f && Format::overflow == 0x7f;  // E4M3
  static constexpr int dropped = is_shorter ? 7 : 8;  // bits between the last ones of the two formats

  template <class V>
  RINGREDUCE_INLINE static Quarters<lanes_of<V>> decode(V stored) {
    constexpr int N = lanes_of<V>;
    using Pairs = Vec<std::uint16_t, 2 * N>;
    constexpr std::make_integer_sequence<int, N> lanes;
    const Pairs bytes = bits_as<Pairs>(stored);
    const Pairs odd = as_float16(bytes), even = as_float16(bytes << 8);
    return {{Float16::decode(part<0>(odd, lanes)), Float16::decode(part<N>(odd, lanes)),
             Float16::decode(part<0>(even, lanes)), Float16::decode(part<N>(even, lanes))}};
  }

  template <int N>
  RINGREDUCE_INLINE static Vec<Element, N> encode(const Quarters<N>& sum) {
    const auto odd = as_float8(sum.of[0], sum.of[1]), even = as_float8(sum.of[2], sum.of[3]);
    return bits_as<Vec<Element, N>>(odd | (even >> 8));
  }

 private:
  // Of the numbers in the upper bytes.
  template <class V>
  RINGREDUCE_INLINE static V as_float16(V byte) {
    if constexpr (!is_shorter) return byte & std::uint16_t{0xff00};
    const V half = bits_as<V>(bits_as<Like<std::int16_t, V>>(byte) >> 1) & std::uint16_t{0xbf80};
    return half | ((half + std::uint16_t{0x80}) & std::uint16_t{0x4000});  // NaN, of which all bits are set
  }

  // In the upper bytes. All that exceeds the largest number has a bit where E4M3 has none.
  template <class V>
  RINGREDUCE_INLINE static auto as_float8(V low, V high) {
    constexpr int N = lanes_of<V>;
    using Pairs = Vec<std::uint16_t, 2 * N>;
    using Signed = Vec<std::int16_t, 2 * N>;
    const Pairs half = both(Float16::encode(to_odd(low)), Float16::encode(to_odd(high)),
                            std::make_integer_sequence<int, 2 * N>{});
    constexpr std::uint16_t below_half = (1 << (dropped - 1)) - 1;
    const Pairs rounded = half + below_half + ((half >> dropped) & std::uint16_t{1});
    if constexpr (!is_shorter) return rounded & std::uint16_t{0xff00};
    const Pairs moved = rounded << 1;
    const Pairs magnitude = (moved | bits_as<Pairs>(bits_as<Signed>(moved) >> 15)) & std::uint16_t{0x7f00};
    const Pairs is_nan = (magnitude + std::uint16_t{0x100}) & std::uint16_t{0x8000};
    return magnitude | (rounded & std::uint16_t{0x8000} & ~is_nan);
  }

  // Cuts off what float16 has no bits for, and sets the last bit that it has if that was not zero. Rounding
  // again is then the same as rounding once.
  template <class V>
  RINGREDUCE_INLINE static V to_odd(V value) {
    if constexpr (of_two) return value;
    using Bits = BitsOf<V>;
    constexpr std::uint32_t beyond = 0x1fff;
    const Bits bits = bits_as<Bits>(value);
    return bits_as<V>((bits | ((bits & beyond) + beyond)) & ~beyond);
  }
};
template <class Format, bool of_two, int N>
struct DecodedOf<FoursOfFloat8<Format, of_two>, N> {
  using type = Quarters<N>;
};

// The last elements, which fill no word, are combined as a format of their own.
template <class Words, class Format, class Op, class Spans>
[[gnu::noinline]] void loop_of_words(void* const* destinations, int destination_count,
                                     const void* const* sources, int source_count, std::size_t count,
                                     double scale) {
  constexpr int per_word = sizeof(typename Words::Element) / sizeof(typename Format::Element);
  const Spans spans(destinations, destination_count, sources, source_count);
  const Op op(scale_of(scale));
  Loop<Words, Op, Spans>{spans, op}.run(count / per_word);
  const std::size_t left = count % per_word;
  if (left != 0) Loop<Format, Op, Spans>{spans, op}.template rest<per_word / 2>(count - left, left);
}

// `OfTwo`: the words for two sources.
template <class Words, class OfTwo, class Format, class Op>
void combine_words(void* const* destinations, int destination_count, const void* const* sources,
                   int source_count, std::size_t count, double scale) {
  auto* chosen = loop_of_words<Words, Format, Op, AnySpans>;
  if (destination_count == 1 && source_count == 2)
    chosen = loop_of_words<OfTwo, Format, Op, FixedSpans<1, 2>>;
  if (destination_count == 2 && source_count == 2)
    chosen = loop_of_words<OfTwo, Format, Op, FixedSpans<2, 2>>;
  return chosen(destinations, destination_count, sources, source_count, count, scale);
}

}  // namespace ringreduce::RINGREDUCE_ISA

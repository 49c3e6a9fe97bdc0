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
      constexpr std::make_integer_sequence<int, 2 * N> halves;
      const auto low = bits_as<Vec<Element, N>>(value.low), high = bits_as<Vec<Element, N>>(value.high);
      const auto cut = alternately(low >> 16, high, halves), rest = alternately(low, high << 16, halves);
      return bits_as<Vec<Element, N>>(rounded(cut, rest));
    }
  }

 private:
  // The lower halves of one vector's words, and the upper halves of the other's.
  template <class V, int... half>
  RINGREDUCE_INLINE static auto alternately(V lower, V upper, std::integer_sequence<int, half...>) {
    using Shorts = Vec<std::uint16_t, sizeof...(half)>;
    return __builtin_shufflevector(bits_as<Shorts>(lower), bits_as<Shorts>(upper),
                                   (half % 2 == 0 ? half : static_cast<int>(sizeof...(half)) + half)...);
  }

  // To nearest even, from the upper and the lower halves of float32. A NaN's lower half is zero, because
  // those of the operands are.
  template <class V>
  RINGREDUCE_INLINE static V rounded(V upper, V lower) {
    using Signed = Like<std::int16_t, V>;
    const V sticky = lower | (upper & std::uint16_t{1});
    const V is_beyond_half = bits_as<V>(bits_as<Signed>(sticky ^ std::uint16_t{0x8000}) > 0);
    const V sum = upper - is_beyond_half;
    const auto is_nan = bits_as<Signed>(sum & std::uint16_t{0x7fff}) > std::int16_t{0x7f80};
    return is_nan ? V{} + std::uint16_t{0x7fc0} : sum;
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
  RINGREDUCE_INLINE Quarters operator*(const Quarters& other) const {
    return {{of[0] * other.of[0], of[1] * other.of[1], of[2] * other.of[2], of[3] * other.of[3]}};
  }
  RINGREDUCE_INLINE Quarters operator*(float factor) const {
    return {{of[0] * factor, of[1] * factor, of[2] * factor, of[3] * factor}};
  }
};

// float8 is float16 without its last bits, and with E4M3 without its first exponent bit: the float16 of the
// same fields is smaller by 2^8. The processor converts float16. `for_sums`: of E4M3, sums are smaller by
// 2^8, too. `of_two`: sums of two numbers, which float16 holds or rounds to no number half way between two
// float8.
template <class Format, bool for_sums, bool of_two = false>
struct FoursOfFloat8 {
  using Element = std::uint32_t;
  using Lane = float;
  static constexpr bool is_shorter = Format::magnitude_mask == 0x7f && Format::overflow == 0x7f;  // E4M3
  static constexpr int dropped = is_shorter ? 7 : 8;  // bits between the last ones of the two formats
  static constexpr bool is_scaled = is_shorter && !for_sums;

  template <class V>
  RINGREDUCE_INLINE static Quarters<lanes_of<V>> decode(V stored) {
    constexpr int N = lanes_of<V>;
    using Pairs = Vec<std::uint16_t, 2 * N>;
    constexpr std::make_integer_sequence<int, N> lanes;
    const Pairs bytes = bits_as<Pairs>(stored);
    const Pairs odd = as_float16(bytes), even = as_float16(bytes << 8);
    const Quarters<N> halves = {{Float16::decode(part<0>(odd, lanes)), Float16::decode(part<N>(odd, lanes)),
                                 Float16::decode(part<0>(even, lanes)),
                                 Float16::decode(part<N>(even, lanes))}};
    return is_scaled ? halves * 0x1p8f : halves;
  }

  template <int N>
  RINGREDUCE_INLINE static Vec<Element, N> encode(const Quarters<N>& value) {
    const Quarters<N> halves = is_scaled ? value * 0x1p-8f : value;
    const auto odd = as_float16(halves.of[0], halves.of[1]), even = as_float16(halves.of[2], halves.of[3]);
    if constexpr (!is_shorter) {
      return bits_as<Vec<Element, N>>((rounded(odd) & std::uint16_t{0xff00}) | (rounded(even) >> 8));
    } else {
      using Bytes = Vec<std::uint8_t, 4 * N>;
      const auto upper = magnitude(odd) << 1 & std::uint16_t{0xff00}, lower = magnitude(even) >> 7;
      const auto signs = (odd & std::uint16_t{0x8000}) | ((even >> 8) & std::uint16_t{0x80});
      const Bytes number = bits_as<Bytes>(upper | lower);
      return bits_as<Vec<Element, N>>(number |
                                      (bits_as<Bytes>(signs) & (number != std::uint8_t{Format::nan})));
    }
  }

 private:
  // Of the numbers in the upper bytes.
  template <class V>
  RINGREDUCE_INLINE static V as_float16(V byte) {
    if constexpr (!is_shorter) return byte & std::uint16_t{0xff00};
    const V half = bits_as<V>(bits_as<Like<std::int16_t, V>>(byte) >> 1) & std::uint16_t{0xbf80};
    return half | ((half + std::uint16_t{0x80}) & std::uint16_t{0x4000});  // NaN, of which all bits are set
  }

  // To the places that float8 has.
  template <class V>
  RINGREDUCE_INLINE static V rounded(V half) {
    constexpr std::uint16_t below_half = (1 << (dropped - 1)) - 1;
    return half + below_half + ((half >> dropped) & std::uint16_t{1});
  }
  // All that exceeds the largest number becomes NaN.
  template <class V>
  RINGREDUCE_INLINE static V magnitude(V half) {
    constexpr std::int16_t nan = Format::nan << dropped;
    const auto all = bits_as<Like<std::int16_t, V>>(rounded(half & std::uint16_t{0x7fff}));
    return bits_as<V>(all < nan ? all : Like<std::int16_t, V>{} + nan);
  }

  // NaN need not become the same one here if magnitude() replaces it. `Half` is Float16, where that has
  // convert().
  template <class Half = Float16, class V>
  RINGREDUCE_INLINE static auto as_float16(V low, V high) {
    constexpr std::make_integer_sequence<int, 2 * lanes_of<V>> lanes;
    if constexpr (is_shorter) return both(Half::convert(to_odd(low)), Half::convert(to_odd(high)), lanes);
    return both(Half::encode(to_odd(low)), Half::encode(to_odd(high)), lanes);
  }

  // Keeps six bits of the mantissa, and sets the last of them if the others were not zero. Rounding again is
  // then the same as rounding once: float16 has these bits of every number that is at least half of the
  // smallest float8.
  template <class V>
  RINGREDUCE_INLINE static V to_odd(V value) {
    if constexpr (of_two) return value;
    using Bits = BitsOf<V>;
    constexpr std::uint32_t beyond = 0x1ffff;
    const Bits bits = bits_as<Bits>(value);
    return bits_as<V>((bits | ((bits & beyond) + beyond)) & ~beyond);
  }
};
template <class Format, bool for_sums, bool of_two, int N>
struct DecodedOf<FoursOfFloat8<Format, for_sums, of_two>, N> {
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

// What takes the place of some combinations of arithmetic/ on CPUs: the same bits, in vectors that hold more
// of the elements.
#pragma once

#include <utility>

#include "reduce/arithmetic/combinations.h"
#include "reduce/kernels/loops.h"

namespace ringreduce::RINGREDUCE_ISA {

template <class Format>
inline constexpr std::int16_t infinity_of = 0x7c00;  // of IEEE's 16 bits
template <>
inline constexpr std::int16_t infinity_of<BFloat16> = 0x7f80;
template <class Format>
inline constexpr std::int16_t nan_of = 0x7e00;
template <>
inline constexpr std::int16_t nan_of<BFloat16> = 0x7fc0;

// Floats of 16 bits as integers.
struct Patterns {
  using Element = std::uint16_t;
  using Lane = std::int16_t;
  template <class V>
  RINGREDUCE_INLINE static Like<Lane, V> decode(V stored) {
    return bits_as<Like<Lane, V>>(stored);
  }
  template <class V>
  RINGREDUCE_INLINE static Like<Element, V> encode(V value) {
    return bits_as<Like<Element, V>>(value);
  }
};

// The smaller or larger of two floats of 16 bits, of which neither must be rounded. Their bits, with those of
// negative ones reversed, are ordered like the numbers, and -0 is below +0. NaN, which wins, gets the key
// beyond all numbers.
template <class Format, bool largest>
struct Extreme : Operator {
  using Operator::Operator;
  static constexpr std::int16_t of_nan = largest ? 0x7fff : -0x8000, all_but_sign = 0x7fff;

  template <class V>
  RINGREDUCE_INLINE static V reversed_if_negative(V x) {
    return x ^ ((x >> 15) & all_but_sign);
  }
  template <class V>
  RINGREDUCE_INLINE V before(V x) const {
    return (x & all_but_sign) > infinity_of<Format> ? V{} + of_nan : reversed_if_negative(x);
  }
  template <class V>
  RINGREDUCE_INLINE V apply(V a, V b) const {
    if constexpr (largest) return a < b ? b : a;
    return a < b ? a : b;
  }
  template <class V>
  RINGREDUCE_INLINE V after(V key) const {
    return key == of_nan ? V{} + nan_of<Format> : reversed_if_negative(key);
  }
};

// Whether the processor adds floats of 16 bits (sum_of_halves in lanes.h).
template <class V>
inline constexpr bool adds_halves = requires(V x) { sum_of_halves(x, x); };

// The sum of two float16, rounded once. Rounding to float32 first would not change it, because float32 has
// twice as many bits and two more. The sum of three would differ.
struct SumOfHalves : Operator {
  using Operator::Operator;
  template <class V>
  RINGREDUCE_INLINE V apply(V a, V b) const {
    return sum_of_halves(a, b);
  }
  template <class V>
  RINGREDUCE_INLINE V after(V x) const {
    return (x & std::int16_t{0x7fff}) > infinity_of<Float16> ? V{} + nan_of<Float16> : x;
  }
};

template <class Op>
void combine_halves(void* const* destinations, int destination_count, const void* const* sources,
                    int source_count, std::size_t count, double scale) {
  auto* chosen = combine_often<Float16, Op, 1>;
  if (source_count == 2) chosen = loop<Patterns, SumOfHalves, AnySpans>;
  if (destination_count == 1 && source_count == 2) chosen = loop<Patterns, SumOfHalves, FixedSpans<1, 2>>;
  return chosen(destinations, destination_count, sources, source_count, count, scale);
}

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

template <class Op, class Spans>
[[gnu::noinline]] void loop_of_pairs(void* const* destinations, int destination_count,
                                     const void* const* sources, int source_count, std::size_t count,
                                     double scale) {
  const Spans spans(destinations, destination_count, sources, source_count);
  const Op op(scale_of(scale));
  Loop<PairsOfBFloat16, Op, Spans>{spans, op}.run(count / 2);
  if (count % 2 != 0) Loop<BFloat16, Op, Spans>{spans, op}.template block<4, 1, 1>(count - 1);
}

template <class Op>
void combine_pairs(void* const* destinations, int destination_count, const void* const* sources,
                   int source_count, std::size_t count, double scale) {
  auto* chosen = loop_of_pairs<Op, AnySpans>;
  if (destination_count == 1 && source_count == 2) chosen = loop_of_pairs<Op, FixedSpans<1, 2>>;
  if (destination_count == 2 && source_count == 2) chosen = loop_of_pairs<Op, FixedSpans<2, 2>>;
  return chosen(destinations, destination_count, sources, source_count, count, scale);
}

// Complex numbers as pairs of lanes.
template <class T>
struct Interleaved : Float<T> {};
template <class T>
inline constexpr int together<Interleaved<T>> = 2;

// The formula of Complex, for several numbers at once.
struct InterleavedProduct : Operator {
  using Operator::Operator;

  template <class V>
  RINGREDUCE_INLINE V apply(V a, V b) const {
    return product(a, b, std::make_integer_sequence<int, lanes_of<V>>{});
  }

 private:
  template <class V, int... places>
  RINGREDUCE_INLINE static V permuted(V value) {
#ifdef __clang__
    return __builtin_shufflevector(value, value, places...);
#else
    return __builtin_shuffle(value, BitsOf<V>{places...});
#endif
  }
  template <class V, int... lane>
  RINGREDUCE_INLINE static V product(V a, V b, std::integer_sequence<int, lane...>) {
    using Bits = BitsOf<V>;
    constexpr auto sign = LaneOf<Bits>{1} << (8 * sizeof(LaneOf<V>) - 1);
    const V real = permuted<V, (lane & ~1)...>(a), imag = permuted<V, (lane | 1)...>(a);
    const V crossed = imag * permuted<V, (lane ^ 1)...>(b);
    const Bits minus{(lane % 2 == 0 ? sign : 0)...};  // in the real parts
    return real * b + bits_as<V>(bits_as<Bits>(crossed) ^ minus);
  }
};

template <class Format_, class Op_>
struct Substitute {
  using Format = Format_;
  using Op = Op_;
};
template <class Format_>
  requires(sizeof(typename Format_::Element) == 2)
struct Substitute<Format_, FloatMin> {
  using Format = Patterns;
  using Op = Extreme<Format_, false>;
};
template <class Format_>
  requires(sizeof(typename Format_::Element) == 2)
struct Substitute<Format_, FloatMax> {
  using Format = Patterns;
  using Op = Extreme<Format_, true>;
};
template <class T>
struct Substitute<Complex<T>, Product> {
  using Format = Interleaved<T>;
  using Op = InterleavedProduct;
};

}  // namespace ringreduce::RINGREDUCE_ISA

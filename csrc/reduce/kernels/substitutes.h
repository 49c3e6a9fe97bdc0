// What takes the place of some combinations of arithmetic/ on CPUs: the same bits, in vectors that hold more
// of the elements.
#pragma once

#include <utility>

#include "reduce/kernels/words.h"

namespace ringreduce::RINGREDUCE_ISA {

// The bits of infinity, or of the largest number, beyond which there is only NaN; and of NaN.
template <class Format>
inline constexpr std::int16_t beyond_is_nan = 0x7c00;  // IEEE's 16 bits
template <>
inline constexpr std::int16_t beyond_is_nan<BFloat16> = 0x7f80;
template <>
inline constexpr std::int8_t beyond_is_nan<Float8E4M3> = 0x7e;
template <>
inline constexpr std::int8_t beyond_is_nan<Float8E5M2> = 0x7c;
template <class Format>
inline constexpr std::int16_t nan_of = 0x7e00;
template <>
inline constexpr std::int16_t nan_of<BFloat16> = 0x7fc0;
template <class Format>
  requires(sizeof(typename Format::Element) == 1)
inline constexpr std::int8_t nan_of<Format> = static_cast<std::int8_t>(Format::nan);

// Floats of 8 or 16 bits as integers.
template <class Stored>
struct Patterns {
  using Element = Stored;
  using Lane = std::make_signed_t<Stored>;
  template <class V>
  RINGREDUCE_INLINE static Like<Lane, V> decode(V stored) {
    return bits_as<Like<Lane, V>>(stored);
  }
  template <class V>
  RINGREDUCE_INLINE static Like<Element, V> encode(V value) {
    return bits_as<Like<Element, V>>(value);
  }
};

// The smaller or larger of two small floats, of which neither must be rounded. Their bits, with those of
// negative ones reversed, are ordered like the numbers, and -0 is below +0. NaN, which wins, gets the key
// beyond all numbers.
template <class Format, bool largest>
struct Extreme : Operator {
  using Operator::Operator;
  using Lane = std::make_signed_t<typename Format::Element>;
  static constexpr auto all_but_sign = static_cast<Lane>((1u << (8 * sizeof(Lane) - 1)) - 1);
  static constexpr Lane of_nan = largest ? all_but_sign : ~all_but_sign;

  template <class V>
  RINGREDUCE_INLINE static V reversed_if_negative(V x) {
    return x ^ ((x < 0) & all_but_sign);
  }
  template <class V>
  RINGREDUCE_INLINE V before(V x) const {
    return (x & all_but_sign) > beyond_is_nan<Format> ? V{} + of_nan : reversed_if_negative(x);
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
    return (x & std::int16_t{0x7fff}) > beyond_is_nan<Float16> ? V{} + nan_of<Float16> : x;
  }
};

template <class Op>
void combine_halves(void* const* destinations, int destination_count, const void* const* sources,
                    int source_count, std::size_t count, double scale) {
  auto* chosen = combine_often<Float16, Op, 1>;
  if (source_count == 2) chosen = loop<Patterns<std::uint16_t>, SumOfHalves, AnySpans>;
  if (destination_count == 1 && source_count == 2)
    chosen = loop<Patterns<std::uint16_t>, SumOfHalves, FixedSpans<1, 2>>;
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

template <class Format>
inline constexpr bool is_small =
    std::is_same_v<typename Format::Lane, float> && sizeof(typename Format::Element) < 4;

template <class Format_, class Op_>
struct Substitute {
  using Format = Format_;
  using Op = Op_;
};
template <class Format_>
  requires is_small<Format_>
struct Substitute<Format_, FloatMin> {
  using Format = Patterns<typename Format_::Element>;
  using Op = Extreme<Format_, false>;
};
template <class Format_>
  requires is_small<Format_>
struct Substitute<Format_, FloatMax> {
  using Format = Patterns<typename Format_::Element>;
  using Op = Extreme<Format_, true>;
};
template <class T>
struct Substitute<Complex<T>, Product> {
  using Format = Interleaved<T>;
  using Op = InterleavedProduct;
};

}  // namespace ringreduce::RINGREDUCE_ISA

// The operators, on vectors of lanes: before(x) on each operand, apply(a, b) to join two, after(x) on the
// result.
#pragma once

#include <type_traits>

#include "reduce/kernels/vector.h"

namespace ringreduce {
namespace {

struct Operator {
  explicit Operator(double) {}  // the scale, which most ignore
  template <class V>
  RINGREDUCE_INLINE V before(V x) const {
    return x;
  }
  template <class V>
  RINGREDUCE_INLINE V after(V x) const {
    return x;
  }
};

struct Sum : Operator {
  using Operator::Operator;
  template <class V>
  RINGREDUCE_INLINE V apply(V a, V b) const {
    return a + b;
  }
};

struct Product : Operator {
  using Operator::Operator;
  template <class V>
  RINGREDUCE_INLINE V apply(V a, V b) const {
    return a * b;
  }
};

struct Min : Operator {
  using Operator::Operator;
  template <class V>
  RINGREDUCE_INLINE V apply(V a, V b) const {
    return a < b ? a : b;
  }
};

struct Max : Operator {
  using Operator::Operator;
  template <class V>
  RINGREDUCE_INLINE V apply(V a, V b) const {
    return a < b ? b : a;
  }
};

struct And : Operator {
  using Operator::Operator;
  template <class V>
  RINGREDUCE_INLINE V apply(V a, V b) const {
    return a & b;
  }
};

struct Or : Operator {
  using Operator::Operator;
  template <class V>
  RINGREDUCE_INLINE V apply(V a, V b) const {
    return a | b;
  }
};

struct Xor : Operator {
  using Operator::Operator;
  template <class V>
  RINGREDUCE_INLINE V apply(V a, V b) const {
    return a ^ b;
  }
};

// A comparison is false for NaN and for zeros of either sign, so that picking either way round returns one
// operand and the other. The OR of both is then NaN if one of them is, and -0 if one of them is; in all
// other cases both ways pick the same. The order of the operands never shows.
template <class Lane>
struct FloatMin : Operator {
  using Operator::Operator;
  template <class V>
  RINGREDUCE_INLINE V apply(V a, V b) const {
    using Bits = decltype(a < b);
    return reinterpret_cast<V>(reinterpret_cast<Bits>(a < b ? a : b) | reinterpret_cast<Bits>(b < a ? b : a));
  }
};

// max(a, b) = -min(-a, -b), which keeps the above for NaN and makes +0 the larger zero.
template <class Lane>
struct FloatMax : FloatMin<Lane> {
  using FloatMin<Lane>::FloatMin;
  template <class V>
  RINGREDUCE_INLINE V before(V x) const {
    return -x;
  }
  template <class V>
  RINGREDUCE_INLINE V after(V x) const {
    return -x;
  }
};

template <class Lane>
struct ScaledSum : Sum {
  Lane scale;
  explicit ScaledSum(double scale) : Sum(scale), scale(static_cast<Lane>(scale)) {}
  template <class V>
  RINGREDUCE_INLINE V after(V x) const {
    return x * scale;
  }
};

// Sums as unsigned, which may wrap, and divides as T.
template <class T>
struct IntegerAverage : Sum {
  // Up to 32 bits a float64 quotient, cut, is exact, and unlike integer division there is a vector one.
  using Divisor = std::conditional_t<(sizeof(T) <= 4), double, T>;
  Divisor divisor;

  explicit IntegerAverage(double scale) : Sum(scale), divisor(1) {
    const double nearest = 1 / scale + 0.5;
    if (nearest >= 1 && nearest < 0x1p62) divisor = static_cast<Divisor>(static_cast<std::int64_t>(nearest));
  }
  template <class V>
  RINGREDUCE_INLINE V after(V x) const {
    constexpr int lanes = sizeof(V) / sizeof(T);
    T values[lanes];
    __builtin_memcpy(values, &x, sizeof x);
    for (int i = 0; i < lanes; ++i) values[i] = static_cast<T>(static_cast<Divisor>(values[i]) / divisor);
    __builtin_memcpy(&x, values, sizeof x);
    return x;
  }
};

}  // namespace
}  // namespace ringreduce

// The operators, on single lanes: before(x) on each operand, apply(a, b) to join two, after(x) on the result.
// The same bits as reduce/kernels/operators.h gives.
#pragma once

#include <type_traits>

#include "reduce/cuda/bits.h"
#include "reduce/cuda/spans.h"

namespace ringreduce::device {

struct Operator {
  RINGREDUCE_DEVICE explicit Operator(const Scale&) {}  // which most ignore
  template <class T>
  RINGREDUCE_DEVICE T before(T x) const {
    return x;
  }
  template <class T>
  RINGREDUCE_DEVICE T after(T x) const {
    return x;
  }
};

// What is narrower than int would be computed as int, whose overflow is undefined.
template <class T>
using Wrapping = std::conditional_t<(std::is_integral_v<T> && sizeof(T) < 4), std::uint32_t, T>;

struct Sum : Operator {
  using Operator::Operator;
  template <class T>
  RINGREDUCE_DEVICE T apply(T a, T b) const {
    return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
  }
};

struct Product : Operator {
  using Operator::Operator;
  template <class T>
  RINGREDUCE_DEVICE T apply(T a, T b) const {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
    } else {
      return a * b;
    }
  }
};

struct Min : Operator {
  using Operator::Operator;
  template <class T>
  RINGREDUCE_DEVICE T apply(T a, T b) const {
    return a < b ? a : b;
  }
};

struct Max : Operator {
  using Operator::Operator;
  template <class T>
  RINGREDUCE_DEVICE T apply(T a, T b) const {
    return a < b ? b : a;
  }
};

struct And : Operator {
  using Operator::Operator;
  template <class T>
  RINGREDUCE_DEVICE T apply(T a, T b) const {
    return a & b;
  }
};

struct Or : Operator {
  using Operator::Operator;
  template <class T>
  RINGREDUCE_DEVICE T apply(T a, T b) const {
    return a | b;
  }
};

struct Xor : Operator {
  using Operator::Operator;
  template <class T>
  RINGREDUCE_DEVICE T apply(T a, T b) const {
    return a ^ b;
  }
};

// Picking by a comparison either way round returns one operand and the other for NaN and for zeros of either
// sign. The OR of both is then NaN if one of them is, and -0 if one of them is; in all other cases both ways
// pick the same.
template <class Lane>
struct FloatMin : Operator {
  using Operator::Operator;
  RINGREDUCE_DEVICE Lane apply(Lane a, Lane b) const {
    using Bits = std::conditional_t<sizeof(Lane) == 4, std::uint32_t, std::uint64_t>;
    return bits_as<Lane>(bits_as<Bits>(a < b ? a : b) | bits_as<Bits>(b < a ? b : a));
  }
};

// max(a, b) = -min(-a, -b), which keeps the above for NaN and makes +0 the larger zero.
template <class Lane>
struct FloatMax : FloatMin<Lane> {
  using FloatMin<Lane>::FloatMin;
  RINGREDUCE_DEVICE Lane before(Lane x) const { return -x; }
  RINGREDUCE_DEVICE Lane after(Lane x) const { return -x; }
};

template <class Lane>
struct ScaledSum : Sum {
  Lane factor;
  RINGREDUCE_DEVICE explicit ScaledSum(const Scale& scale)
      : Sum(scale), factor(static_cast<Lane>(scale.factor)) {}
  RINGREDUCE_DEVICE Lane after(Lane x) const { return x * factor; }
};

// Sums as unsigned, which may wrap, and divides as T. A quotient is that of the magnitudes: division of 32
// bits is the cheapest there is, and the divisor may be beyond what T holds.
template <class T>
struct IntegerAverage : Sum {
  using Magnitude = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
  using Unsigned = std::make_unsigned_t<T>;
  Magnitude divisor;
  bool beyond;  // every magnitude

  RINGREDUCE_DEVICE explicit IntegerAverage(const Scale& scale)
      : Sum(scale),
        divisor(static_cast<Magnitude>(scale.divisor)),
        beyond(divisor != static_cast<std::uint64_t>(scale.divisor)) {}

  RINGREDUCE_DEVICE Unsigned after(Unsigned sum) const {
    const bool negative = std::is_signed_v<T> && static_cast<std::make_signed_t<T>>(sum) < 0;
    const Unsigned magnitude = negative ? static_cast<Unsigned>(0u - sum) : sum;
    const Magnitude quotient = beyond ? 0 : magnitude / divisor;
    return static_cast<Unsigned>(negative ? 0 - quotient : quotient);
  }
};

}  // namespace ringreduce::device

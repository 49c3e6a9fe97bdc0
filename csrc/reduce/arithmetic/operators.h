// The operators, on lanes: before(x) on each operand, apply(a, b) to join two, after(x) on the result.
#pragma once

#include "lanes.h"  // for the target that the build file compiles for
#include "reduce/dtype.h"

namespace ringreduce::RINGREDUCE_ISA {

struct Operator {
  RINGREDUCE_INLINE explicit Operator(const Scale&) {}  // ignored by most
  RINGREDUCE_INLINE auto before(auto x) const { return x; }
  RINGREDUCE_INLINE auto after(auto x) const { return x; }
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
  // C++ would compute it as int, whose overflow is undefined.
  RINGREDUCE_INLINE std::uint16_t apply(std::uint16_t a, std::uint16_t b) const {
    return static_cast<std::uint16_t>(std::uint32_t{a} * b);
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

// A comparison is false for NaN and for zeros of either sign, so picking in both directions returns one
// operand and the other. Their OR is NaN if one of them is, and -0 if one of them is. In all other cases both
// directions pick the same operand. The result never depends on the order of the operands.
struct FloatMin : Operator {
  using Operator::Operator;
  template <class V>
  RINGREDUCE_INLINE V apply(V a, V b) const {
    return bits_as<V>(bits_as<BitsOf<V>>(a < b ? a : b) | bits_as<BitsOf<V>>(b < a ? b : a));
  }
};

// max(a, b) = -min(-a, -b), which keeps these properties for NaN and makes +0 the larger zero.
struct FloatMax : FloatMin {
  using FloatMin::FloatMin;
  RINGREDUCE_INLINE auto before(auto x) const { return -x; }
  RINGREDUCE_INLINE auto after(auto x) const { return -x; }
};

template <class Lane>
struct ScaledSum : Sum {
  Lane factor;
  RINGREDUCE_INLINE explicit ScaledSum(const Scale& scale)
      : Sum(scale), factor(static_cast<Lane>(scale.factor)) {}
  RINGREDUCE_INLINE auto after(auto x) const { return x * factor; }
};

}  // namespace ringreduce::RINGREDUCE_ISA

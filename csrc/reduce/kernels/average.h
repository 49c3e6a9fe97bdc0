// Averages of integers, on vectors.
#pragma once

#include "reduce/arithmetic/operators.h"

namespace ringreduce::RINGREDUCE_ISA {

// Sums as unsigned, which may wrap, and divides as T.
template <class T>
struct IntegerAverage : Sum {
  // Up to 32 bits, a truncated float64 quotient is exact, and unlike integer division it is vectorised.
  using Divisor = std::conditional_t<(sizeof(T) <= 4), double, T>;
  Divisor divisor;

  RINGREDUCE_INLINE explicit IntegerAverage(const Scale& scale)
      : Sum(scale), divisor(static_cast<Divisor>(scale.divisor)) {}
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

}  // namespace ringreduce::RINGREDUCE_ISA

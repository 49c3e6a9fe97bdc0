// Averages of integers, by integer division.
#pragma once

#include "reduce/arithmetic/operators.h"

namespace ringreduce::device {

// Sums as unsigned, which may wrap, and divides as T. A quotient is computed from magnitudes: 32-bit division
// is the cheapest, and the divisor may exceed T.
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

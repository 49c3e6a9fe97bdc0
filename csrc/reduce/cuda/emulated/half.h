// float16 <-> float32 in integer arithmetic.
#pragma once

#include "reduce/cuda/small_float.h"

namespace ringreduce::device {

using Half = SmallFloat<std::uint16_t, 5, 10, true>;
inline float half_to_float(std::uint16_t half) {
  return Half::decode(half);
}
inline std::uint16_t float_to_half(float value) {
  return Half::encode(value);
}

}  // namespace ringreduce::device

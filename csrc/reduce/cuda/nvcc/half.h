// float16 <-> float32 with a GPU's own conversions.
#pragma once

#include "device.h"

namespace ringreduce::device {

// To nearest even. Any NaN becomes some NaN.
RINGREDUCE_DEVICE float half_to_float(std::uint16_t half) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
  return value;
}
RINGREDUCE_DEVICE std::uint16_t float_to_half(float value) {
  std::uint16_t half;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
  return half;
}

}  // namespace ringreduce::device

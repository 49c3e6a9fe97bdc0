// float16 <-> float32 with a GPU's own conversions.
#pragma once

#include "lanes.h"

namespace ringreduce::device {

struct Float16 {
  using Element = std::uint16_t;
  using Lane = float;
  RINGREDUCE_DEVICE static float decode(std::uint16_t half) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(half));
    return value;
  }
  // To nearest even. The conversion turns any NaN into some NaN.
  RINGREDUCE_DEVICE static std::uint16_t encode(float value) {
    std::uint16_t half;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
    return value == value ? half : 0x7e00;
  }
};

}  // namespace ringreduce::device

// The same bits as another type.
#pragma once

#include "device.h"  // of nvcc or emulated, which the build file chooses

namespace ringreduce::device {

template <class To, class From>
RINGREDUCE_DEVICE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

}  // namespace ringreduce::device

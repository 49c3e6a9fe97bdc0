// Single values, where the CPU uses vectors.
#pragma once

#include <type_traits>

#include "device.h"  // nvcc's or the emulated one, as the build file chooses

#define RINGREDUCE_INLINE RINGREDUCE_DEVICE

namespace ringreduce::device {

inline constexpr bool subnormals_are_cheap = true;

template <class To, class From>
RINGREDUCE_DEVICE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

template <class V>
using LaneOf = V;
template <class T, class>
using Like = T;
template <class V>
using BitsOf = std::conditional_t<sizeof(V) == 4, std::uint32_t, std::uint64_t>;

RINGREDUCE_DEVICE std::uint32_t widen(std::uint32_t value) {
  return value;
}
template <class T>
RINGREDUCE_DEVICE T narrow(std::uint32_t value) {
  return static_cast<T>(value);
}

}  // namespace ringreduce::device

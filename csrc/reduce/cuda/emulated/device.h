// What device code is written with, where a C++ compiler compiles it for a test: threads run one after
// another, and an access that a GPU would refuse as misaligned throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#define RINGREDUCE_DEVICE inline
#define RINGREDUCE_UNROLL
#define RINGREDUCE_NO_UNROLL

namespace ringreduce::device {

struct alignas(16) Words {
  std::uint32_t at[4];
};

template <class T>
void check_alignment(const char* address) {
  if (reinterpret_cast<std::uintptr_t>(address) % alignof(T) != 0) {
    throw std::logic_error("misaligned access of " + std::to_string(sizeof(T)) + " bytes");
  }
}

template <class T>
T load_aligned(const char* from) {
  check_alignment<T>(from);
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <class T>
void store_aligned(char* to, const T& value) {
  check_alignment<T>(to);
  std::memcpy(to, &value, sizeof value);
}

inline constexpr int warp_lanes = 32;

template <class T>
struct PerLane {
  T value[warp_lanes];
  T& operator[](int lane) { return value[lane]; }
};

template <class Body>
void on_lanes(Body body) {
  for (int lane = 0; lane < warp_lanes; ++lane) body(lane);
}

inline std::uint32_t largest_of_lanes(const PerLane<std::uint32_t>& number) {
  std::uint32_t largest = 0;
  for (const std::uint32_t one : number.value) largest = one > largest ? one : largest;
  return largest;
}

}  // namespace ringreduce::device

// Vectors of any power-of-two number of lanes, in the compiler's own vector types: one source for every
// instruction set. Everything under kernels/ and arithmetic/ is compiled once per instruction set. It is
// therefore in a namespace of that name, and calls no function template of the standard library: a shared
// symbol compiled for a newer machine could replace the one that an older machine runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#define RINGREDUCE_INLINE [[gnu::always_inline]] inline
#define RINGREDUCE_ANYWHERE

namespace ringreduce::RINGREDUCE_ISA {

template <class T, int N>
struct VecOf {
  typedef T type __attribute__((vector_size(N * sizeof(T))));  // NOLINT(modernize-use-using)
};
template <class T, int N>
using Vec = typename VecOf<T, N>::type;

// The size of a register.
constexpr int vector_bytes = RINGREDUCE_VECTOR_BYTES;

// Whether products with subnormal numbers are as fast as others.
constexpr bool subnormals_are_cheap = false;

template <class To, class From>
RINGREDUCE_INLINE To bits_as(From from) {
  return __builtin_bit_cast(To, from);
}

// The following functions also take a single value for V, as a vector's lane.
template <class V>
constexpr auto lane_of(V value) {
  if constexpr (std::is_arithmetic_v<V>) {
    return value;
  } else {
    return value[0];
  }
}
template <class V>
using LaneOf = decltype(lane_of(V{}));
template <class V>
constexpr int lanes_of =
    sizeof(V) / sizeof(LaneOf<V>);  // NOLINT(bugprone-sizeof-expression): a V may be a lane

// As many lanes of T as V has.
template <class T, class V>
using Like = std::conditional_t<std::is_arithmetic_v<V>, T, Vec<T, lanes_of<V>>>;

template <std::size_t bytes>
using UnsignedOf =
    std::conditional_t<bytes == 1, std::uint8_t,
                       std::conditional_t<bytes == 2, std::uint16_t,
                                          std::conditional_t<bytes == 4, std::uint32_t, std::uint64_t>>>;
template <class V>
using BitsOf = Like<UnsignedOf<sizeof(LaneOf<V>)>, V>;

// The first `count` of N lanes. Part of a vector is moved as one integer into a register whose rest is zero,
// because compilers would otherwise keep vectors of a few bytes in memory.
template <class T, int N, int count>
RINGREDUCE_INLINE Vec<T, N> load(const void* from) {
  if constexpr (count == N) {
    Vec<T, N> value;
    __builtin_memcpy(&value, from, sizeof value);
    return value;
  } else {
    using Part = UnsignedOf<count * sizeof(T)>;
    Part part;
    __builtin_memcpy(&part, from, sizeof part);
    return bits_as<Vec<T, N>>(Vec<Part, N / count>{part});
  }
}

template <class T, int N, int count>
RINGREDUCE_INLINE void store(void* to, Vec<T, N> value) {
  if constexpr (count == N) {
    __builtin_memcpy(to, &value, sizeof value);
  } else {
    using Part = UnsignedOf<count * sizeof(T)>;
    const Part part = bits_as<Vec<Part, N / count>>(value)[0];
    __builtin_memcpy(to, &part, sizeof part);
  }
}

}  // namespace ringreduce::RINGREDUCE_ISA

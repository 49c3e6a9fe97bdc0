// Vectors of any power-of-two number of lanes, in the compiler's own vector types: one source for every
// instruction set. Everything under kernels/ is compiled once per instruction set, so it has internal linkage
// and calls no function template of the standard library: a shared symbol compiled for a newer machine could
// replace the one that an older machine runs.
#pragma once

#include <cstddef>
#include <cstdint>

#define RINGREDUCE_INLINE [[gnu::always_inline]] inline

namespace ringreduce {
namespace {

template <class T, int N>
struct VecOf {
  typedef T type __attribute__((vector_size(N * sizeof(T))));  // NOLINT(modernize-use-using)
};
template <class T, int N>
using Vec = typename VecOf<T, N>::type;

// The size of a register.
constexpr int vector_bytes = RINGREDUCE_VECTOR_BYTES;

// The same bits as lanes of another type.
template <class T, int N, class V>
RINGREDUCE_INLINE Vec<T, N> bits_as(V value) {
  static_assert(sizeof(V) == sizeof(Vec<T, N>));
  return reinterpret_cast<Vec<T, N>>(value);
}

template <std::size_t bytes>
struct UnsignedOf;
template <>
struct UnsignedOf<1> {
  using type = std::uint8_t;
};
template <>
struct UnsignedOf<2> {
  using type = std::uint16_t;
};
template <>
struct UnsignedOf<4> {
  using type = std::uint32_t;
};
template <>
struct UnsignedOf<8> {
  using type = std::uint64_t;
};

// The first `count` of N lanes. A part is moved as one integer into a register, the rest of which is zero:
// left to itself, the compiler keeps vectors of a few bytes in memory.
template <class T, int N, int count>
RINGREDUCE_INLINE Vec<T, N> load(const void* from) {
  if constexpr (count == N) {
    Vec<T, N> value;
    __builtin_memcpy(&value, from, sizeof value);
    return value;
  } else {
    using Part = typename UnsignedOf<count * sizeof(T)>::type;
    Part part;
    __builtin_memcpy(&part, from, sizeof part);
    return bits_as<T, N>(Vec<Part, N / count>{part});
  }
}

template <class T, int N, int count>
RINGREDUCE_INLINE void store(void* to, Vec<T, N> value) {
  if constexpr (count == N) {
    __builtin_memcpy(to, &value, sizeof value);
  } else {
    using Part = typename UnsignedOf<count * sizeof(T)>::type;
    const Part part = bits_as<Part, N / count>(value)[0];
    __builtin_memcpy(to, &part, sizeof part);
  }
}

}  // namespace
}  // namespace ringreduce

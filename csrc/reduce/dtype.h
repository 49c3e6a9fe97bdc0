// Element types and reduction operators: names, sizes, kinds.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringreduce {

enum class DType : std::uint8_t {
  float64,
  float32,
  float16,
  bfloat16,
  float8_e4m3,
  float8_e5m2,
  int64,
  int32,
  int16,
  int8,
  uint8,
  boolean,
  uint16,
  uint32,
  uint64,
  complex64,
  complex128,
};
inline constexpr int dtype_count = 17;

// avg is the sum divided by the number of ranks; premul_sum is the sum of factor * x.
enum class Op : std::uint8_t { sum, prod, min, max, band, bor, bxor, avg, premul_sum };
inline constexpr int op_count = 9;

const char* name_of(DType dtype);  // "float32", ..., "bool"
const char* name_of(Op op);
std::size_t size_of(DType dtype);
// Whether op has a meaning for dtype: the bit operators have one only for integers and bool, premul_sum only
// for floats and complex numbers, min and max have none for complex numbers, avg has none for bool.
bool supports(DType dtype, Op op);

}  // namespace ringreduce

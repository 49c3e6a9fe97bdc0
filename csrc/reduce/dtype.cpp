#include "reduce/dtype.h"

namespace ringreduce {
namespace {

enum class Kind : std::uint8_t { floating, complex, integer, boolean };

struct Entry {
  const char* name;
  std::size_t size;
  Kind kind;
};

// In the order of DType.
constexpr Entry dtypes[dtype_count] = {
    {"float64", 8, Kind::floating},  {"float32", 4, Kind::floating},     {"float16", 2, Kind::floating},
    {"bfloat16", 2, Kind::floating}, {"float8_e4m3", 1, Kind::floating}, {"float8_e5m2", 1, Kind::floating},
    {"int64", 8, Kind::integer},     {"int32", 4, Kind::integer},        {"int16", 2, Kind::integer},
    {"int8", 1, Kind::integer},      {"uint8", 1, Kind::integer},        {"bool", 1, Kind::boolean},
    {"uint16", 2, Kind::integer},    {"uint32", 4, Kind::integer},       {"uint64", 8, Kind::integer},
    {"complex64", 8, Kind::complex}, {"complex128", 16, Kind::complex},
};

// In the order of Op.
constexpr const char* ops[op_count] = {"sum", "prod", "min", "max",       "band",
                                       "bor", "bxor", "avg", "premul_sum"};

const Entry& entry(DType dtype) {
  return dtypes[static_cast<int>(dtype)];
}

}  // namespace

const char* name_of(DType dtype) {
  return entry(dtype).name;
}

const char* name_of(Op op) {
  return ops[static_cast<int>(op)];
}

std::size_t size_of(DType dtype) {
  return entry(dtype).size;
}

bool supports(DType dtype, Op op) {
  const Kind kind = entry(dtype).kind;
  const bool whole = kind == Kind::integer || kind == Kind::boolean;
  switch (op) {
    case Op::band:
    case Op::bor:
    case Op::bxor:
      return whole;
    case Op::avg:
      return kind != Kind::boolean;
    case Op::premul_sum:
      return !whole;
    case Op::min:
    case Op::max:
      return kind != Kind::complex;
    default:
      return true;
  }
}

}  // namespace ringreduce

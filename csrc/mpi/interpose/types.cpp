#include "mpi/interpose/types.h"

#include <array>
#include <functional>
#include <optional>
#include <utility>

namespace ringreduce::mpi {
namespace {

struct Named {
  MPI_Datatype handle;
  std::optional<NumberKind> kind;  // none: elements that are only moved
};

// Handles that a library lacks are MPI_DATATYPE_NULL.
const auto& all_named() {
  using enum NumberKind;
  constexpr std::nullopt_t moved_only = std::nullopt;
  static const std::array named = std::to_array<Named>({
      {MPI_SIGNED_CHAR, signed_integer},
      {MPI_SHORT, signed_integer},
      {MPI_INT, signed_integer},
      {MPI_LONG, signed_integer},
      {MPI_LONG_LONG, signed_integer},
      {MPI_INT8_T, signed_integer},
      {MPI_INT16_T, signed_integer},
      {MPI_INT32_T, signed_integer},
      {MPI_INT64_T, signed_integer},
      {MPI_AINT, signed_integer},
      {MPI_OFFSET, signed_integer},
      {MPI_COUNT, signed_integer},
      {MPI_INTEGER, signed_integer},
      {MPI_INTEGER1, signed_integer},
      {MPI_INTEGER2, signed_integer},
      {MPI_INTEGER4, signed_integer},
      {MPI_INTEGER8, signed_integer},
      {MPI_UNSIGNED_CHAR, unsigned_integer},
      {MPI_UNSIGNED_SHORT, unsigned_integer},
      {MPI_UNSIGNED, unsigned_integer},
      {MPI_UNSIGNED_LONG, unsigned_integer},
      {MPI_UNSIGNED_LONG_LONG, unsigned_integer},
      {MPI_UINT8_T, unsigned_integer},
      {MPI_UINT16_T, unsigned_integer},
      {MPI_UINT32_T, unsigned_integer},
      {MPI_UINT64_T, unsigned_integer},
      {MPI_FLOAT, floating},
      {MPI_DOUBLE, floating},
      {MPI_REAL, floating},
      {MPI_REAL4, floating},
      {MPI_REAL8, floating},
      {MPI_DOUBLE_PRECISION, floating},
      {MPI_C_FLOAT_COMPLEX, complex},
      {MPI_C_DOUBLE_COMPLEX, complex},
      {MPI_CXX_FLOAT_COMPLEX, complex},
      {MPI_CXX_DOUBLE_COMPLEX, complex},
      {MPI_COMPLEX, complex},
      {MPI_COMPLEX8, complex},
      {MPI_COMPLEX16, complex},
      {MPI_DOUBLE_COMPLEX, complex},
      {MPI_BYTE, boolean},
      {MPI_CHAR, moved_only},
      {MPI_WCHAR, moved_only},
      {MPI_C_BOOL, moved_only},
      {MPI_CXX_BOOL, moved_only},
      {MPI_LOGICAL, moved_only},
      {MPI_CHARACTER, moved_only},
      {MPI_LONG_DOUBLE, moved_only},
      {MPI_C_LONG_DOUBLE_COMPLEX, moved_only},
      {MPI_FLOAT_INT, moved_only},
      {MPI_2INT, moved_only},
      {MPI_DOUBLE_INT, moved_only},
      {MPI_LONG_INT, moved_only},
      {MPI_PACKED, moved_only},
  });
  return named;
}

Kind kind_of(const Named& named) {
  Kind kind;
  kind.handle = named.handle;
  int size = 0;
  MPI_Aint begin = 0, extent = 0;
  PMPI_Type_size(named.handle, &size);
  PMPI_Type_get_extent(named.handle, &begin, &extent);
  kind.size = size > 0 ? static_cast<std::size_t>(size) : 0;
  kind.plain = begin == 0 && extent == size;
  if (named.kind) kind.dtype = common_dtype(*named.kind, kind.size);
  return kind;
}

// Found by their handles, on the way of every call.
class Kinds {
 public:
  Kinds() {
    for (const Named& named : all_named()) {
      if (named.handle == MPI_DATATYPE_NULL || find(named.handle)) continue;
      const Kind kind = kind_of(named);
      if (kind.size > 0) place(named.handle) = kind;
    }
  }
  const Kind* find(MPI_Datatype handle) {
    const Kind& kind = place(handle);
    return kind.size > 0 ? &kind : nullptr;
  }

 private:
  // Where it is, or would be.
  Kind& place(MPI_Datatype handle) {
    const std::size_t hash = std::hash<MPI_Datatype>()(handle) * 0x9e3779b97f4a7c15ull;
    for (std::size_t at = hash >> 56;; ++at) {
      Kind& kind = kinds_[at % kinds_.size()];
      if (kind.size == 0 || kind.handle == handle) return kind;
    }
  }
  std::array<Kind, 256> kinds_{};
};

}  // namespace

const Kind* predefined(MPI_Datatype type) {
  static Kinds kinds;
  return type == MPI_DATATYPE_NULL ? nullptr : kinds.find(type);
}

bool reduces(const Kind& kind, MPI_Op op, Op& found) {
  if (!kind.dtype) return false;
  const std::pair<MPI_Op, Op> ops[] = {{MPI_SUM, Op::sum},   {MPI_MAX, Op::max},   {MPI_MIN, Op::min},
                                       {MPI_PROD, Op::prod}, {MPI_BAND, Op::band}, {MPI_BOR, Op::bor},
                                       {MPI_BXOR, Op::bxor}};
  for (const auto& [theirs, ours] : ops) {
    if (op != theirs) continue;
    found = ours;
    const bool of_bits = ours == Op::band || ours == Op::bor || ours == Op::bxor;
    return supports(*kind.dtype, ours) && (of_bits || *kind.dtype != DType::boolean);
  }
  return false;
}

Shape shape_of(MPI_Datatype type) {
  if (type == MPI_DATATYPE_NULL) return {};
  if (const Kind* kind = predefined(type); kind && kind->plain) {
    const auto size = static_cast<MPI_Count>(kind->size);
    return {size, size, true};
  }
  Shape shape;
  MPI_Count begin = 0;
  if (PMPI_Type_size_x(type, &shape.size) != MPI_SUCCESS) return {};
  if (PMPI_Type_get_extent_x(type, &begin, &shape.extent) != MPI_SUCCESS) return {};
  return shape;
}

}  // namespace ringreduce::mpi

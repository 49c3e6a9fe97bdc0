#include "fronts/mpi/interpose/types.h"

#include <array>
#include <functional>
#include <optional>
#include <utility>

namespace ringreduce::mpi {
namespace {

Shape measured(MPI_Datatype type) {
  Shape shape;
  MPI_Count begin = 0;
  if (PMPI_Type_size_x(type, &shape.size) != MPI_SUCCESS) return {};
  if (PMPI_Type_get_extent_x(type, &begin, &shape.extent) != MPI_SUCCESS) return {};
  return shape;
}

// Looked up by handle in every call.
class Kinds {
 public:
  Kinds() {
    using enum NumberKind;
    // MPI defines no reductions of MPI_CHAR, but the libraries reduce it as signed bytes.
    add(signed_integer, {MPI_CHAR, MPI_SIGNED_CHAR, MPI_SHORT, MPI_INT, MPI_LONG, MPI_LONG_LONG, MPI_INT8_T,
                         MPI_INT16_T, MPI_INT32_T, MPI_INT64_T, MPI_AINT, MPI_OFFSET, MPI_COUNT, MPI_INTEGER,
                         MPI_INTEGER1, MPI_INTEGER2, MPI_INTEGER4, MPI_INTEGER8});
    add(unsigned_integer, {MPI_UNSIGNED_CHAR, MPI_UNSIGNED_SHORT, MPI_UNSIGNED, MPI_UNSIGNED_LONG,
                           MPI_UNSIGNED_LONG_LONG, MPI_UINT8_T, MPI_UINT16_T, MPI_UINT32_T, MPI_UINT64_T});
    add(floating, {MPI_FLOAT, MPI_DOUBLE, MPI_REAL, MPI_REAL4, MPI_REAL8, MPI_DOUBLE_PRECISION});
    add(complex, {MPI_C_FLOAT_COMPLEX, MPI_C_DOUBLE_COMPLEX, MPI_CXX_FLOAT_COMPLEX, MPI_CXX_DOUBLE_COMPLEX,
                  MPI_COMPLEX, MPI_COMPLEX8, MPI_COMPLEX16, MPI_DOUBLE_COMPLEX});
    add(boolean, {MPI_BYTE});
    const std::nullopt_t moved_only = std::nullopt;
    add(moved_only,
        {MPI_WCHAR, MPI_C_BOOL, MPI_CXX_BOOL, MPI_LOGICAL, MPI_CHARACTER, MPI_LONG_DOUBLE,
         MPI_C_LONG_DOUBLE_COMPLEX, MPI_FLOAT_INT, MPI_2INT, MPI_DOUBLE_INT, MPI_LONG_INT, MPI_PACKED});
  }
  const Kind* find(MPI_Datatype handle) {
    const Kind& kind = place(handle);
    return kind.shape.size > 0 ? &kind : nullptr;
  }

 private:
  // A library sets handles that it lacks to MPI_DATATYPE_NULL.
  void add(std::optional<NumberKind> number, std::initializer_list<MPI_Datatype> handles) {
    for (MPI_Datatype handle : handles) {
      if (handle == MPI_DATATYPE_NULL || find(handle)) continue;
      Kind kind{handle, measured(handle), std::nullopt};
      if (kind.shape.size <= 0) continue;
      kind.shape.plain = kind.shape.extent == kind.shape.size;
      if (number) kind.dtype = common_dtype(*number, static_cast<std::size_t>(kind.shape.size));
      place(handle) = kind;
    }
  }
  // Its slot, used or free.
  Kind& place(MPI_Datatype handle) {
    const std::size_t hash = std::hash<MPI_Datatype>()(handle) * 0x9e3779b97f4a7c15ull;
    for (std::size_t at = hash >> 56;; ++at) {
      Kind& kind = kinds_[at % kinds_.size()];
      if (kind.shape.size <= 0 || kind.handle == handle) return kind;
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

bool is_users(MPI_Op op) {
  for (MPI_Op known : {MPI_OP_NULL, MPI_SUM, MPI_MAX, MPI_MIN, MPI_PROD, MPI_BAND, MPI_BOR, MPI_BXOR,
                       MPI_LAND, MPI_LOR, MPI_LXOR, MPI_MAXLOC, MPI_MINLOC, MPI_REPLACE, MPI_NO_OP,
#ifdef MPIX_EQUAL
                       MPIX_EQUAL
#endif
       }) {
    if (op == known) return false;
  }
  return true;
}

Shape shape_of(MPI_Datatype type) {
  if (type == MPI_DATATYPE_NULL) return {};
  const Kind* kind = predefined(type);
  return kind ? kind->shape : measured(type);
}

}  // namespace ringreduce::mpi

// MPI's predefined datatypes and ops, as the engine's.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <optional>

#include "reduce/dtype.h"

namespace ringreduce::mpi {

// Elements of any datatype; size < 0 if unknown.
struct Shape {
  MPI_Count size = -1;   // bytes that an element has in a message
  MPI_Count extent = 0;  // from one element to the next in memory
  bool plain = false;    // predefined, with consecutive elements without gaps
};
Shape shape_of(MPI_Datatype type);

struct Kind {
  MPI_Datatype handle{};
  Shape shape;
  std::optional<DType> dtype;  // the type that the engine reduces; bool for MPI_BYTE, which has the same bits
};

// Null for a program's own datatype.
const Kind* predefined(MPI_Datatype type);

// Whether `op` is predefined, defined by MPI for this datatype, and supported by the engine.
bool reduces(const Kind& kind, MPI_Op op, Op& found);

// Whether a program has made it. A handle that was never an op is not told from one that is.
bool is_users(MPI_Op op);

}  // namespace ringreduce::mpi

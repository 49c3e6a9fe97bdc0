// MPI's predefined datatypes and ops, as the engine knows them.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <optional>

#include "reduce/dtype.h"

namespace ringreduce::mpi {

// Elements of any datatype; size < 0 where that cannot be told.
struct Shape {
  MPI_Count size = -1;   // bytes that an element has in a message
  MPI_Count extent = 0;  // from one element to the next in memory
  bool plain = false;    // predefined, and elements follow each other without gaps
};
Shape shape_of(MPI_Datatype type);

struct Kind {
  MPI_Datatype handle{};
  Shape shape;
  std::optional<DType> dtype;  // what the engine reduces it as; MPI_BYTE as bool, which has the same bits
};

// Null for what a program has made.
const Kind* predefined(MPI_Datatype type);

// Whether `op` is a predefined one that MPI defines for this datatype and that the engine has, too.
bool reduces(const Kind& kind, MPI_Op op, Op& found);

}  // namespace ringreduce::mpi

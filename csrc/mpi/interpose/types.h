// MPI's predefined datatypes and ops, as the engine knows them.
#pragma once

#include <mpi.h>

#include <cstddef>

#include "reduce/dtype.h"

namespace ringreduce::mpi {

// What the ops mean for a predefined datatype.
enum class Family : unsigned char { signed_integer, unsigned_integer, real, complex, bits, moved_only };

struct Kind {
  MPI_Datatype handle{};
  std::size_t size = 0;  // bytes of an element
  bool plain = false;    // elements follow each other without gaps
  bool known = false;    // the engine has it: `dtype`
  Family family = Family::moved_only;
  DType dtype = DType::uint8;
};

// Null for what a program has made.
const Kind* predefined(MPI_Datatype type);

// Whether `op` is a predefined one that MPI defines for this datatype and that the engine has, too.
bool reduces(const Kind& kind, MPI_Op op, Op& found);

// Elements of any datatype; size < 0 where that cannot be told.
struct Shape {
  MPI_Count size = -1;   // bytes that an element has in a message
  MPI_Count extent = 0;  // from one element to the next in memory
  bool plain = false;
};
Shape shape_of(MPI_Datatype type);

}  // namespace ringreduce::mpi

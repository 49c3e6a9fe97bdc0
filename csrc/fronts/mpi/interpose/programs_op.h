// An op that the program has made, from whichever language. The library applies it, in the thread that calls.
#pragma once

#include <mpi.h>

#include "reduce/user_op.h"

namespace ringreduce::mpi {

class ProgramsOp final : public UserOp {
 public:
  ProgramsOp(MPI_Op op, MPI_Datatype type);
  void apply(const void* left, void* right, std::size_t count, DType dtype) const override;

 private:
  ProgramsOp(MPI_Op op, MPI_Datatype type, bool does_commute, std::size_t element_bytes);

  const MPI_Op op_;
  const MPI_Datatype type_;
};

}  // namespace ringreduce::mpi

#include "fronts/mpi/interpose/programs_op.h"

#include "fronts/mpi/interpose/types.h"

namespace ringreduce::mpi {
namespace {

bool does_commute(MPI_Op op) {
  int commutes = 0;
  return PMPI_Op_commutative(op, &commutes) == MPI_SUCCESS && commutes != 0;
}

std::string in_words(int code) {
  char text[MPI_MAX_ERROR_STRING] = "an unknown error";
  int length = 0;
  PMPI_Error_string(code, text, &length);
  return text;
}

}  // namespace

// Ranks agree on the elements, and on whether the op commutes. Nothing else about it is the same on all ranks
// of every right program: its handle and number differ where ranks make different ops before it, and its
// function's file and place where they run different programs or compile it while they run.
ProgramsOp::ProgramsOp(MPI_Op op, MPI_Datatype type)
    : ProgramsOp(op, type, does_commute(op), static_cast<std::size_t>(shape_of(type).size)) {}

ProgramsOp::ProgramsOp(MPI_Op op, MPI_Datatype type, bool does_commute, std::size_t element_bytes)
    : UserOp("user-defined", does_commute, element_bytes, 2 * element_bytes + (does_commute ? 1 : 0)),
      op_(op),
      type_(type) {}

// The engine's blocks are short enough for an int.
void ProgramsOp::apply(const void* left, void* right, std::size_t count, DType /*dtype*/) const {
  const int code = PMPI_Reduce_local(left, right, static_cast<int>(count), type_, op_);
  if (code != MPI_SUCCESS) throw OpFailed("the program's op", "MPI_Reduce_local: " + in_words(code));
}

}  // namespace ringreduce::mpi

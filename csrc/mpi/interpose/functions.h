// The functions of MPI that are taken over, and how many calls of each were served or handed on.
#pragma once

#include <cstdint>
#include <string>

namespace ringreduce::mpi {

enum class Function : std::uint8_t {
  allreduce,
  reduce,
  reduce_scatter,
  reduce_scatter_block,
  allgather,
  allgatherv,
  bcast,
  barrier,
};
inline constexpr int function_count = 8;

// MPI_Bcast, MPI_Ibcast, MPI_Bcast_c and MPI_Ibcast_c are forms of one function.
struct Form {
  bool nonblocking = false;
  bool large = false;
};
inline constexpr Form blocking{}, nonblocking{true, false}, large{false, true}, large_nonblocking{true, true};

std::string name_of(Function function, Form form);

// Does nothing unless RINGREDUCE_MPI_COUNT asks for it.
void count(Function function, Form form, bool served);
// One line on stderr for each function that was called, if they were counted and this rank shall say so.
void report_counts(int rank);

}  // namespace ringreduce::mpi

// How many calls of each function were served or handed on, for RINGREDUCE_MPI_COUNT: "1" for rank 0 to say
// it at the end, "all" for every rank.
#pragma once

namespace ringreduce::mpi {

// Does nothing unless somebody shall say so. `function` is a string literal: "MPI_Bcast".
void count(const char* function, bool served);
// One line on stderr for each function that was called, if this rank shall say so.
void report_counts(int rank);

}  // namespace ringreduce::mpi

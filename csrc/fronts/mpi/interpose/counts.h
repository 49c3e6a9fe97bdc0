// Counts the calls of each function that were served or handed on, for RINGREDUCE_MPI_COUNT: with "1" rank 0
// reports them at the end, with "all" every rank.
#pragma once

namespace ringreduce::mpi {

// Does nothing unless some rank will report. `function` is a string literal: "MPI_Bcast".
void count(const char* function, bool served);
// Writes one line to stderr for each function that was called, if this rank reports.
void report_counts(int rank);

}  // namespace ringreduce::mpi

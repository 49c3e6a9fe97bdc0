// Nonblocking calls: the group's progress thread runs them, and ends MPI's generalized request. That thread
// calls MPI, so all of this is only for processes in which any thread may.
#pragma once

#include <mpi.h>

#include <memory>

#include "mpi/interpose/seat.h"
#include "mpi/interpose/served_call.h"

namespace ringreduce::mpi {

// Returns what the program's call returns. Throws Trouble.
int run_in_background(Seat& seat, std::unique_ptr<ServedCall> served, MPI_Request* request);

}  // namespace ringreduce::mpi

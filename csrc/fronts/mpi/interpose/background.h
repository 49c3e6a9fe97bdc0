// Nonblocking calls: the group's progress thread runs them, and completes MPI's generalized request. That
// thread calls MPI, so this needs processes in which any thread may.
#pragma once

#include <mpi.h>

#include <memory>

#include "fronts/mpi/interpose/seat.h"
#include "fronts/mpi/interpose/served_call.h"

namespace ringreduce::mpi {

// Throws what the group throws, and then makes no request.
void run_in_background(Seat& seat, std::unique_ptr<ServedCall> served, MPI_Request* request);

// A request whose status is a collective's, and that ends with `code`, which it deletes; null: with success.
// Returns MPI's result.
int start_request(int* code, MPI_Request* request);
// Completes and frees a request that no thread waits for.
void drop_request(MPI_Request* request);

}  // namespace ringreduce::mpi

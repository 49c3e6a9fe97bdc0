#include "fronts/mpi/interpose/background.h"

#include <stdexcept>

namespace ringreduce::mpi {
namespace {

int give_status(void* code, MPI_Status* status) {
  PMPI_Status_set_elements(status, MPI_BYTE, 0);
  PMPI_Status_set_cancelled(status, 0);
  status->MPI_SOURCE = MPI_UNDEFINED;
  status->MPI_TAG = MPI_UNDEFINED;
  return code ? *static_cast<int*>(code) : MPI_SUCCESS;
}

int free_code(void* code) {
  delete static_cast<int*>(code);
  return MPI_SUCCESS;
}

// Collectives cannot be cancelled.
int cancel_nothing(void*, int) {
  return MPI_SUCCESS;
}

int code_of(Seat& seat, const std::exception_ptr& problem) {
  try {
    std::rethrow_exception(problem);
  } catch (const std::exception& error) {
    return seat.code_for(error);
  }
}

}  // namespace

int start_request(int* code, MPI_Request* request) {
  return PMPI_Grequest_start(give_status, free_code, cancel_nothing, code, request);
}

void drop_request(MPI_Request* request) {
  PMPI_Grequest_complete(*request);
  PMPI_Wait(request, MPI_STATUS_IGNORE);
}

void run_in_background(Seat& seat, std::unique_ptr<ServedCall> served, MPI_Request* request) {
  auto made = std::make_unique<int>(MPI_SUCCESS);
  if (start_request(made.get(), request) != MPI_SUCCESS)
    throw std::runtime_error("MPI cannot make a request");
  int* const code = made.release();
  seat.began_in_background();
  try {
    // Once the request is complete, the program may free it and the communicator.
    seat.group().submit(std::move(served), [&seat, code, ends = *request](const auto& problem, int) {
      if (problem) *code = code_of(seat, problem);
      seat.ended_in_background();
      PMPI_Grequest_complete(ends);
    });
  } catch (...) {
    seat.ended_in_background();
    drop_request(request);
    throw;
  }
}

}  // namespace ringreduce::mpi

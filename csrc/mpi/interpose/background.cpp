#include "mpi/interpose/background.h"

#include "mpi/interpose/requests.h"

namespace ringreduce::mpi {
namespace {

// What the request knows until MPI frees it.
struct Ending {
  int code = MPI_SUCCESS;
};

int give_ending(void* state, MPI_Status* status) {
  empty_status(status);
  return static_cast<Ending*>(state)->code;
}

int free_state(void* state) {
  delete static_cast<Ending*>(state);
  return MPI_SUCCESS;
}

int code_of(Seat& seat, const std::exception_ptr& problem) {
  try {
    std::rethrow_exception(problem);
  } catch (const Trouble& trouble) {
    return seat.code_for(trouble);
  } catch (...) {
    return MPI_ERR_INTERN;
  }
}

}  // namespace

int run_in_background(Seat& seat, std::unique_ptr<ServedCall> served, MPI_Request* request) {
  auto ending = std::make_unique<Ending>();
  const int code = PMPI_Grequest_start(give_ending, free_state, cancel_nothing, ending.get(), request);
  if (code != MPI_SUCCESS) throw Trouble(Outcome::other, -1, "MPI cannot make a request");
  Ending* state = ending.release();
  seat.began_in_background();
  try {
    // Once the request is complete the program may free it, and the communicator.
    seat.group().submit(std::move(served), [&seat, state, ends = *request](const auto& problem, int) {
      if (problem) state->code = code_of(seat, problem);
      seat.ended_in_background();
      PMPI_Grequest_complete(ends);
    });
  } catch (...) {
    // Of a call that never began the program gets no request.
    seat.ended_in_background();
    PMPI_Grequest_complete(*request);
    PMPI_Wait(request, MPI_STATUS_IGNORE);
    throw;
  }
  return MPI_SUCCESS;
}

}  // namespace ringreduce::mpi

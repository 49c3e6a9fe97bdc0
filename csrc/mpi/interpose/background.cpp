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

class EndRequest : public Completion {
 public:
  EndRequest(Seat& seat, MPI_Request request, Ending* ending)
      : seat_(seat), request_(request), ending_(ending) {}

  // Once the request is complete the program may free it, and the communicator.
  void over(std::exception_ptr problem, int) noexcept override {
    if (problem) ending_->code = code_of(problem);
    seat_.ended_in_background();
    PMPI_Grequest_complete(request_);
  }

 private:
  int code_of(const std::exception_ptr& problem) noexcept {
    try {
      std::rethrow_exception(problem);
    } catch (const Trouble& trouble) {
      return seat_.code_for(trouble);
    } catch (...) {
      return MPI_ERR_INTERN;
    }
  }

  Seat& seat_;
  MPI_Request request_;
  Ending* ending_;
};

}  // namespace

int run_in_background(Seat& seat, std::unique_ptr<ServedCall> served, MPI_Request* request) {
  auto ending = std::make_unique<Ending>();
  const int code = PMPI_Grequest_start(give_ending, free_state, cancel_nothing, ending.get(), request);
  if (code != MPI_SUCCESS) throw Trouble(Outcome::other, -1, "MPI cannot make a request");
  Ending* state = ending.release();
  seat.began_in_background();
  try {
    seat.group().submit(std::move(served), std::make_unique<EndRequest>(seat, *request, state));
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

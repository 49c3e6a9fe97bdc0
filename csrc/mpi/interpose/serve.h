// Serves a call, or hands it on to the library.
#pragma once

#include "mpi/interpose/asked.h"
#include "mpi/interpose/background.h"

namespace ringreduce::mpi {

// The communicator's seat, if it takes the call; else null. What is handed on shall lose little time here.
template <typename Asked>
Seat* taker(MPI_Comm comm, Form form, const Asked& asked, Call& call) {
  Seat* seat = seat_of(comm);
  if (!seat || !seat->may_take(Asked::function, form)) return nullptr;
  const MPI_Count bytes = asked.weigh(*seat, call);
  if (bytes < 0 || !seat->takes(Asked::function, form, static_cast<std::size_t>(bytes))) return nullptr;
  return seat;
}

// Whether the call is ours; then `code` is what it returns.
template <typename Asked>
bool served(MPI_Comm comm, Form form, const Asked& asked, int& code) {
  Call call;
  Seat* seat = taker(comm, form, asked, call);
  if (!seat) return false;
  try {
    ServedCall served(call);
    asked.fill(*seat, served);
    seat->group().run(served.call);
    if (served.lands()) served.finish();
    code = MPI_SUCCESS;
  } catch (const Trouble& trouble) {
    code = seat->fail(trouble);
  } catch (const std::exception& error) {
    code = seat->fail(Trouble(Outcome::other, -1, error.what()));
  }
  return true;
}

// The same for a call that returns a request.
template <typename Asked>
bool served(MPI_Comm comm, Form form, const Asked& asked, MPI_Request* request, int& code) {
  Call call;
  Seat* seat = request ? taker(comm, form, asked, call) : nullptr;
  if (!seat) return false;
  try {
    auto served = std::make_unique<ServedCall>(call);
    asked.fill(*seat, *served);
    served->keep_types();
    code = run_in_background(*seat, std::move(served), request);
  } catch (const Trouble& trouble) {
    code = seat->fail(trouble);
  } catch (const std::exception& error) {
    code = seat->fail(Trouble(Outcome::other, -1, error.what()));
  }
  return true;
}

template <typename Asked, typename HandOn>
int serve(MPI_Comm comm, Form form, const Asked& asked, HandOn hand_on) {
  int code = MPI_SUCCESS;
  const bool ours = served(comm, form, asked, code);
  count(Asked::function, form, ours);
  return ours ? code : hand_on();
}

template <typename Asked, typename HandOn>
int serve(MPI_Comm comm, Form form, const Asked& asked, MPI_Request* request, HandOn hand_on) {
  int code = MPI_SUCCESS;
  const bool ours = served(comm, form, asked, request, code);
  count(Asked::function, form, ours);
  return ours ? code : hand_on();
}

}  // namespace ringreduce::mpi

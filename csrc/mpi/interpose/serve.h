// Serves a call, or hands it on to the library.
#pragma once

#include "mpi/interpose/asked.h"
#include "mpi/interpose/background.h"
#include "mpi/interpose/counts.h"
#include "mpi/interpose/runtime.h"

namespace ringreduce::mpi {

// The communicator's seat, if it takes the call; else null. What is handed on shall lose little time here.
template <typename Asked>
Seat* taker(MPI_Comm comm, Function function, bool in_background, const Asked& asked, Call& call) {
  Seat* seat = seat_of(comm);
  if (!seat || !seat->may_take(function, in_background)) return nullptr;
  const MPI_Count bytes = asked.weigh(*seat, call);
  if (bytes < 0 || !seat->takes(function, in_background, static_cast<std::size_t>(bytes))) return nullptr;
  return seat;
}

// Returns what the program's call returns. `name` is the function's in full; `request` is where a nonblocking
// call wants its request, and absent of a blocking one.
template <typename Asked, typename HandOn, typename... Request>
int serve(Function function, const char* name, MPI_Comm comm, const Asked& asked, HandOn hand_on,
          Request*... request) {
  constexpr bool in_background = sizeof...(request) > 0;
  Call call;
  Seat* seat = (... && request) ? taker(comm, function, in_background, asked, call) : nullptr;
  count(name, seat != nullptr);
  if (!seat) return hand_on();
  try {
    if constexpr (in_background) {
      auto served = std::make_unique<ServedCall>(call, comm);
      asked.fill(*seat, *served);
      served->keep_types();
      run_in_background(*seat, std::move(served), request...);
    } else {
      ServedCall served(call, comm);
      asked.fill(*seat, served);
      seat->group().run(served.call);
      served.finish();
    }
    return MPI_SUCCESS;
  } catch (const std::exception& problem) {
    return seat->fail(problem);
  }
}

}  // namespace ringreduce::mpi

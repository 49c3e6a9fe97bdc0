// Serves a call, or hands it on to the library.
#pragma once

#include "fronts/mpi/interpose/asked.h"
#include "fronts/mpi/interpose/background.h"
#include "fronts/mpi/interpose/counts.h"
#include "fronts/mpi/interpose/runtime.h"
#include "fronts/mpi/interpose/settings.h"

namespace ringreduce::mpi {

// A call that is handed on must lose little time here.
template <typename Asked>
Decision decide(Seat* seat, Function function, bool in_background, const Asked& asked, Call& call) {
  if (!seat || !seat->may_take(function, in_background)) return Decision::hand_on;
  const MPI_Count bytes = asked.weigh(*seat, call);
  if (bytes < 0) return Decision::hand_on;
  // A nonblocking call may outlive a program's op, and not every algorithm that the user names keeps the
  // ranks' order.
  if (call.op == user_defined && (in_background || names_algorithms())) return Decision::hand_on;
  return seat->decide(function, in_background, static_cast<std::size_t>(bytes));
}

// Returns the result of the program's call. `name` is the function's full name; `request` receives a
// nonblocking call's request, and is absent for a blocking one.
template <typename Asked, typename HandOn, typename... Request>
int serve(Function function, const char* name, MPI_Comm comm, const Asked& asked, HandOn hand_on,
          Request*... request) {
  constexpr bool in_background = sizeof...(request) > 0;
  Call call;
  Seat* const seat = (... && request) ? seat_of(comm) : nullptr;
  const Decision decision = decide(seat, function, in_background, asked, call);
  count(name, decision == Decision::serve);
  if (decision != Decision::serve) {
    const int code = hand_on();
    if (decision == Decision::hand_on_and_meet) seat->meet();
    return code;
  }
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

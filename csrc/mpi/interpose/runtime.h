// Our part of the MPI process: begins with the first call that reaches us, ends within MPI_Finalize.
#pragma once

#include <mpi.h>

namespace ringreduce::mpi {

class Seat;

// The seat that hangs on a communicator. Null where nothing is served: MPI is not up, we are switched off,
// there is no communicator.
Seat* seat_of(MPI_Comm comm);

// Whether any thread may call MPI at any time.
bool threads_allowed();

// Lets MPI make progress on what this process has asked it for; for waits of ours. Any thread that may call
// MPI may call it.
void drive_progress();

}  // namespace ringreduce::mpi

// The interposer's part of the MPI process: begins with the first call that reaches it, ends within
// MPI_Finalize.
#pragma once

#include <mpi.h>

namespace ringreduce::mpi {

class Seat;

// The seat of a communicator. Null if nothing is served: MPI does not run, the interposer is switched off, or
// there is no communicator.
Seat* seat_of(MPI_Comm comm);

// Whether any thread may call MPI at any time.
bool threads_allowed();

// Lets MPI move this process's operations on during our waits. Any thread that may call MPI may call this.
void drive_progress();

}  // namespace ringreduce::mpi

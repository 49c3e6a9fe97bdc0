// Our part of the MPI process: begins with the first call that reaches us, ends within MPI_Finalize.
#pragma once

#include <mpi.h>

namespace ringreduce::mpi {

class Seat;

// Whether calls may be served: MPI is up, and we are not switched off. The first time it also sets us up.
bool running();
// Whether any thread may call MPI at any time.
bool threads_allowed();

// The seat that hangs on a communicator; makes it if there is none.
Seat* attached_seat(MPI_Comm comm);

// Changes whenever a seat is gone: what was remembered of communicators no longer holds.
unsigned long seats_gone();

// Lets MPI make progress on what this process has asked it for; for waits of ours. Any thread that may call
// MPI may call it.
void drive_progress();

}  // namespace ringreduce::mpi

// Which ranks of the job have us loaded, and with the same RINGREDUCE_MPI: a rank that has not takes part in
// no exchange of ours, so that it cannot be asked. Every rank that has holds a name on its host, which the
// others see, and which ends with the process. Ranks on other hosts are not seen.
#pragma once

namespace ringreduce::mpi {

// Shows that this rank of MPI_COMM_WORLD is there.
void show_presence(int world_rank);

// Whether somebody holds the name of a rank of MPI_COMM_WORLD. All ranks find the same; whether a rank's name
// is its own, it alone knows.
bool shows_presence(int world_rank);
bool has_own_name();

// Whether the launcher says that all ranks of MPI_COMM_WORLD are on this host.
bool on_one_host();

}  // namespace ringreduce::mpi

// Which ranks of the job have loaded this library, with the same RINGREDUCE_MPI. A rank without it joins no
// exchange, so it cannot be asked. Every rank that has holds a name on its host, which the others see, and
// which ends with the process. Ranks on other hosts are not seen.
#pragma once

namespace ringreduce::mpi {

// Shows that this rank of MPI_COMM_WORLD has loaded the library.
void show_presence(int world_rank);

// Whether a process holds the name of a rank of MPI_COMM_WORLD. All ranks get the same answer; only the rank
// itself knows whether the name is its own.
bool shows_presence(int world_rank);
bool has_own_name();

// Whether the launcher reports that all ranks of MPI_COMM_WORLD are on this host.
bool on_one_host();

}  // namespace ringreduce::mpi

// How the ranks of a communicator meet, through MPI. All ranks of it call each function.
#pragma once

#include <mpi.h>

#include "fronts/shared/group.h"

namespace ringreduce::mpi {

// No rank continues: a rank has given up, or an MPI call has failed, which the communicator's error handler
// knows.
class NoMeeting : public std::exception {};

class CommMeeting : public Meeting {
 public:
  CommMeeting(MPI_Comm comm, int size) : comm_(comm), size_(size) {}
  std::vector<Blob> exchange(const Blob& blob) override;
  // Whether this is true on every rank.
  bool all(bool holds);
  // Takes part in the others' next exchange, and ends the meeting for all of them.
  [[noreturn]] void give_up();

 private:
  std::vector<int> exchange_sizes(int size);

  const MPI_Comm comm_;
  const int size_;
};

// The ranks in MPI_COMM_WORLD; MPI_UNDEFINED for those of another job, made by MPI_Comm_spawn and the like.
// Needs no communication.
std::vector<int> world_ranks(MPI_Comm comm, int size);

}  // namespace ringreduce::mpi

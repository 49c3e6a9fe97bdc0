// How the ranks of a communicator meet, by means of MPI. All of it is called by all ranks of it.
#pragma once

#include <mpi.h>

#include "front/group.h"

namespace ringreduce::mpi {

// An MPI call has failed, and the communicator's error handler has been called.
class NoMeeting : public std::exception {
 public:
  const char* what() const noexcept override { return "an MPI call has failed"; }
};

class CommMeeting : public Meeting {
 public:
  CommMeeting(MPI_Comm comm, int size) : comm_(comm), size_(size) {}
  std::vector<Blob> exchange(const Blob& blob) override;
  // What is left of the exchanges that a group is made with, for a rank that has given up: the others are in
  // them.
  void finish();

 private:
  const MPI_Comm comm_;
  const int size_;
  int exchanges_ = 0;
};

// Whether all ranks were started together. Others, of MPI_Comm_spawn and the like, need not have us loaded.
// This asks nobody, and yet every rank finds the same.
bool of_one_job(MPI_Comm comm, int size);

bool share_a_host(MPI_Comm comm, int size);

// What holds for a group if it holds for every rank.
struct Terms {
  bool joined = false;
  bool threads = false;     // MPI may be called in any thread
  bool everything = false;  // serve whatever can be served
};
Terms agree(MPI_Comm comm, Terms terms);

}  // namespace ringreduce::mpi

// The memory that the ranks of an mpirun share to measure (protocol.h).
#pragma once

#include <fcntl.h>
#include <mpi.h>

#include "protocol.h"

// mpirun starts the ranks, so they share memory through a file, which is unlinked before anything is timed.
static void* map_shared(int rank) {
  char path[] = "/dev/shm/ringreduce-bench-XXXXXX";
  int fd = rank == 0 ? mkstemp(path) : -1;
  MPI_Bcast(path, sizeof path, MPI_CHAR, 0, MPI_COMM_WORLD);
  if (rank != 0) fd = open(path, O_RDWR | O_CLOEXEC);
  void* memory = fd < 0 ? NULL : pr_map(fd);
  if (memory == NULL) {
    perror(path);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  close(fd);
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) unlink(path);
  return memory;
}

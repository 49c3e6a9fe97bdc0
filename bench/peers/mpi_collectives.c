// Times an MPI library's collectives, float32 sum in place, by the rules of protocol.h. Compiled with each
// library's mpicc; started by its mpirun.
#define _GNU_SOURCE
#include <fcntl.h>
#include <mpi.h>

#include "protocol.h"

static void all_reduce(void* context, float* buffer, size_t count) {
  (void)context;
  MPI_Allreduce(MPI_IN_PLACE, buffer, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void reduce_scatter(void* context, float* buffer, size_t count) {
  const int block = (int)(count / (size_t)(*(const int*)context));
  MPI_Reduce_scatter_block(MPI_IN_PLACE, buffer, block, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void all_gather(void* context, float* buffer, size_t count) {
  const int block = (int)(count / (size_t)(*(const int*)context));
  MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, buffer, block, MPI_FLOAT, MPI_COMM_WORLD);
}

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

int main(int argc, char** argv) {
  static const pr_call calls[] = {all_reduce, reduce_scatter, all_gather};
  const int cores = (int)sysconf(_SC_NPROCESSORS_ONLN);  // not the affinity: mpirun may have bound this rank
  int rank, ranks;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  pr_case c = {0};
  c.collective = pr_parse_collective(pr_option(argc, argv, "--collective", "all_reduce"));
  if (ranks > PR_MAX_RANKS || c.collective == PR_SCALE) MPI_Abort(MPI_COMM_WORLD, 2);
  c.call = calls[c.collective];
  c.context = &ranks;
  const pr_world world = pr_make_world(rank, ranks, cores, map_shared(rank));
  pr_measure_sizes(&world, c, argc, argv, pr_option(argc, argv, "--library", "mpi"));
  MPI_Finalize();
  return 0;
}

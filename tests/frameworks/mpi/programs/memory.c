// memory <rank>: the first shared memory that the rank makes after MPI_Init fails. All its collectives are
// right.
#define _GNU_SOURCE
#include <errno.h>
#include <mpi.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static int fails = 0;

// In place of the C library's.
int memfd_create(const char* name, unsigned flags) {
  if (fails) {
    fails = 0;
    errno = ENOMEM;
    return -1;
  }
  return (int)syscall(SYS_memfd_create, name, flags);
}

int main(int argc, char** argv) {
  int rank, ranks;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  fails = rank == atoi(argv[1]);
  for (int i = 0; i < 3; ++i) {
    int sum = rank + i, root = rank == 0 ? i : -1;
    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Bcast(&root, 1, MPI_INT, 0, MPI_COMM_WORLD);
    if (sum != ranks * (ranks - 1) / 2 + i * ranks || root != i) MPI_Abort(MPI_COMM_WORLD, 3);
  }
  MPI_Finalize();
  return 0;
}

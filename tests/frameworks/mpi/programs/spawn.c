// Two ranks and two more that they spawn: each two are a world of their own, and all four a communicator.
#include <mpi.h>
#include <stddef.h>

static int sums(MPI_Comm comm) {
  int ranks, failures = 0;
  MPI_Comm_size(comm, &ranks);
  for (int i = 0; i < 50; ++i) {
    int sum = 1;
    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, comm);
    failures += sum != ranks;
  }
  return failures;
}

int main(int argc, char** argv) {
  MPI_Comm others, all;
  MPI_Init(&argc, &argv);
  MPI_Comm_get_parent(&others);
  const int spawned = others != MPI_COMM_NULL;
  if (!spawned) {
    MPI_Comm_spawn(argv[0], MPI_ARGV_NULL, 2, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &others, MPI_ERRCODES_IGNORE);
  }
  MPI_Intercomm_merge(others, spawned, &all);
  const int failures = sums(MPI_COMM_WORLD) + sums(all);
  MPI_Comm_free(&all);
  MPI_Comm_disconnect(&others);
  MPI_Finalize();
  return failures != 0;
}

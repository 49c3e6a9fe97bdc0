// ending: frees communicators while their calls end, which takes a while at the worst moment.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <unistd.h>

// In place of the library's.
int PMPI_Grequest_complete(MPI_Request request) {
  usleep(200000);
  return ((int (*)(MPI_Request))dlsym(RTLD_NEXT, "PMPI_Grequest_complete"))(request);
}

int main(int argc, char** argv) {
  int level, rank, ranks;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  if (level != MPI_THREAD_MULTIPLE) return 2;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (int i = 0; i < 5; ++i) {
    int sum = rank + i;
    MPI_Comm copy;
    MPI_Request request;
    MPI_Comm_dup(MPI_COMM_WORLD, &copy);
    MPI_Barrier(copy);
    MPI_Iallreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, MPI_SUM, copy, &request);
    usleep(100000);  // the call is over, the request not yet
    MPI_Comm_free(&copy);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    if (sum != ranks * (ranks - 1) / 2 + i * ranks) MPI_Abort(MPI_COMM_WORLD, 3);
  }
  MPI_Finalize();
  return 0;
}

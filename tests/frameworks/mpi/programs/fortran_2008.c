// Barriers that the ranks call from C and, by the names that MPICH's module mpi_f08 calls, from Fortran.
#include <mpi.h>
#include <stddef.h>

void mpi_barrier_f08_(const MPI_Fint*, MPI_Fint*);
void mpi_ibarrier_f08_(const MPI_Fint*, MPI_Fint*, MPI_Fint*);

int main(int argc, char** argv) {
  int level, rank, failures = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const MPI_Fint world = MPI_Comm_c2f(MPI_COMM_WORLD);
  for (int i = 0; i < 100; ++i) {
    MPI_Fint error = MPI_SUCCESS;
    if (rank == 0) {
      error = MPI_Barrier(MPI_COMM_WORLD);
    } else {
      mpi_barrier_f08_(&world, i % 2 ? &error : NULL);
    }
    failures += error != MPI_SUCCESS;
  }
  for (int i = 0; i < 10; ++i) {
    MPI_Fint error = -1, number = 0;
    MPI_Request request = MPI_REQUEST_NULL;
    if (rank == 0) {
      error = MPI_Ibarrier(MPI_COMM_WORLD, &request);
    } else {
      mpi_ibarrier_f08_(&world, &number, &error);
      request = MPI_Request_f2c(number);
    }
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    failures += error != MPI_SUCCESS;
  }
  MPI_Finalize();
  return failures != 0;
}

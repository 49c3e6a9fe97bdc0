// calls <number> [<rank that dies after them> <file for what the others say>]: of floats and of chars in
// turn, which are what OSU's benchmarks reduce.
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char** argv) {
  int rank, code = MPI_SUCCESS, length;
  char text[MPI_MAX_ERROR_STRING];
  MPI_Init(&argc, &argv);
  const int number = atoi(argv[1]), victim = argc > 2 ? atoi(argv[2]) : -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  float x[4] = {1, 2, 3, 4};
  for (int i = 0; i < number; ++i) {
    MPI_Allreduce(MPI_IN_PLACE, x, 4, i % 2 ? MPI_CHAR : MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
  }
  if (victim >= 0) {
    if (rank == victim) raise(SIGKILL);
    code = MPI_Allreduce(MPI_IN_PLACE, x, 4, MPI_FLOAT, MPI_MAX, MPI_COMM_WORLD);
    MPI_Error_string(code, text, &length);
    // Not to a launcher that may have lost its head.
    FILE* file = fopen(argv[3], "a");
    fprintf(file, "rank %d: %s\n", rank, text);
    fclose(file);
    _exit(code == MPI_SUCCESS);
  }
  MPI_Finalize();
  return 0;
}

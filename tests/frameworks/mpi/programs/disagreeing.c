// disagreeing <how> <file for what the ranks say>: rank 1 makes calls with another op than the others, or one
// that MPI cannot apply there.
#include "suite.h"

int suite_rank, suite_threads, suite_served;

static void add(void* in, void* so_far, int* count, MPI_Datatype* type) {
  (void)type;
  for (int i = 0; i < *count; ++i) ((int*)so_far)[i] += ((int*)in)[i];
}

static void keep(void* in, void* so_far, int* count, MPI_Datatype* type) {
  (void)in, (void)so_far, (void)count, (void)type;
}

static int op_fails;

// In place of the library's.
int PMPI_Reduce_local(const void* in, void* so_far, int count, MPI_Datatype type, MPI_Op op) {
  (void)op;
  if (op_fails) return MPI_ERR_OP;
  add((void*)in, so_far, &count, &type);
  return MPI_SUCCESS;
}

int main(int argc, char** argv) {
  MPI_Op op;
  int code = MPI_SUCCESS, length = 0;
  char text[MPI_MAX_ERROR_STRING] = "nothing";
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &suite_rank);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  const int other = suite_rank == 1;
  MPI_Op_create(other && strcmp(argv[1], "function") == 0 ? keep : add,
                !(other && strcmp(argv[1], "commutes") == 0), &op);
  if (other && strcmp(argv[1], "predefined") == 0) op = MPI_SUM;
  op_fails = other && strcmp(argv[1], "fails") == 0;
  int x[3] = {1, 2, 3};
  MPI_Barrier(MPI_COMM_WORLD);  // connects the ranks
  for (int i = 0; i < 100 && code == MPI_SUCCESS; ++i) {
    code = MPI_Allreduce(MPI_IN_PLACE, x, 3, MPI_INT, op, MPI_COMM_WORLD);
  }
  if (code != MPI_SUCCESS) MPI_Error_string(code, text, &length);
  FILE* file = fopen(argv[2], "a");
  fprintf(file, "rank %d: %s\n", suite_rank, text);
  fclose(file);
  PMPI_Barrier(MPI_COMM_WORLD);  // a rank whose calls have ended must not seem to have died
  _Exit(0);
}

// suite <threads> <served>: all tests on the ranks that there are. `threads` is 1 to ask for
// MPI_THREAD_MULTIPLE, `served` where the interposer is loaded and serves all that it can.
#include "suite.h"

int suite_rank, suite_threads, suite_served;

typedef struct {
  const char* name;
  void (*run)(MPI_Comm comm);
} part;

int main(int argc, char** argv) {
  const part parts[] = {
      {"reductions", test_reductions},       {"moves", test_moves},
      {"datatypes", test_datatypes},         {"blocks", test_blocks},
      {"communicators", test_communicators}, {"errors", test_errors},
      {"progress", test_progress},           {"threads", test_threads},
  };
  int level = MPI_THREAD_SINGLE;
  suite_threads = argc > 1 && atoi(argv[1]);
  suite_served = argc > 2 && atoi(argv[2]);
  if (suite_threads) {
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    suite_threads = level == MPI_THREAD_MULTIPLE;
  } else {
    MPI_Init(&argc, &argv);
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &suite_rank);
  for (size_t i = 0; i < sizeof parts / sizeof *parts; ++i) {
    const double start = MPI_Wtime();
    parts[i].run(MPI_COMM_WORLD);
    if (suite_rank == 0) printf("%s %.2f s\n", parts[i].name, MPI_Wtime() - start);
    fflush(stdout);
  }
  MPI_Finalize();
  return 0;
}

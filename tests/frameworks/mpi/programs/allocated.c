// allocated <served>: memory of MPI_Alloc_mem. Large blocks lie in shared memory if <served> is 1, small ones
// and those with hints never do. All are usable, and freed in any order.
#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

// Whether an address lies in a mapping of a memfd of ours.
static int is_shared(const void* address) {
  FILE* maps = fopen("/proc/self/maps", "r");
  char line[1024];
  int found = 0;
  while (fgets(line, sizeof line, maps)) {
    unsigned long from, to;
    if (sscanf(line, "%lx-%lx", &from, &to) != 2) continue;
    if ((unsigned long)address >= from && (unsigned long)address < to)
      found = strstr(line, "memfd:ringreduce") != NULL;
  }
  fclose(maps);
  return found;
}

static void require(int holds, int code) {
  if (!holds) MPI_Abort(MPI_COMM_WORLD, code);
}

int main(int argc, char** argv) {
  (void)argc;
  enum { large = 1 << 20, small = 64 };  // floats
  const int served = atoi(argv[1]);
  int rank, ranks;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  float *one, *two, *little, *hinted;
  MPI_Info info;
  MPI_Info_create(&info);
  require(MPI_Alloc_mem(large * sizeof(float), MPI_INFO_NULL, &one) == MPI_SUCCESS, 3);
  require(MPI_Alloc_mem(large * sizeof(float), MPI_INFO_NULL, &two) == MPI_SUCCESS, 4);
  require(MPI_Alloc_mem(small * sizeof(float), MPI_INFO_NULL, &little) == MPI_SUCCESS, 5);
  require(MPI_Alloc_mem(large * sizeof(float), info, &hinted) == MPI_SUCCESS, 6);
  require(is_shared(one) == served && is_shared(two) == served, 7);
  require(!is_shared(little) && !is_shared(hinted), 8);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < large; ++i) one[i] = (float)(rank + i % 5), two[i] = 0;
    MPI_Allreduce(one, two, large, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(MPI_IN_PLACE, one, large, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < large; ++i) {
      const float sum = (float)(ranks * (ranks - 1) / 2 + ranks * (i % 5));
      require(one[i] == sum && two[i] == sum, 9);
    }
  }
  // What a child writes does not reach its parent.
  const pid_t child = fork();
  if (child == 0) {
    one[0] = -1;
    _exit(0);
  }
  waitpid(child, NULL, 0);
  require(one[0] == (float)(ranks * (ranks - 1) / 2), 10);
  little[0] = hinted[0] = 1;
  require(MPI_Free_mem(two) == MPI_SUCCESS && MPI_Free_mem(little) == MPI_SUCCESS, 11);
  require(MPI_Free_mem(one) == MPI_SUCCESS && MPI_Free_mem(hinted) == MPI_SUCCESS, 12);
  MPI_Info_free(&info);
  MPI_Finalize();
  return 0;
}

// Measures the floor of a shared-memory collective of S bytes: the time that the same ranks need, all at
// once, to read and write their own S bytes. Follows protocol.h, with a process per rank, bound to the cores
// in turn.
#define _GNU_SOURCE
#include <sys/wait.h>

#include "protocol.h"

static void scale(void* context, float* buffer, float* result, size_t count) {
  (void)context, (void)result;
  for (size_t i = 0; i < count; ++i) buffer[i] *= 2.0F;
  __asm__ volatile("" : : "r"(buffer) : "memory");  // keeps the loop, between the clock readings
}

int main(int argc, char** argv) {
  const int ranks = atoi(pr_option(argc, argv, "--ranks", "2")), cores = pr_cores();
  void* memory = mmap(NULL, sizeof(pr_shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (ranks < 1 || ranks > PR_MAX_RANKS || memory == MAP_FAILED) return 2;
  int rank = 0;
  while (rank + 1 < ranks && fork() == 0) ++rank;  // each rank starts the next and waits for it at the end
  pr_pin(rank);
  pr_case c = {0};
  c.collective = PR_SCALE;
  c.call = scale;
  const pr_world world = pr_make_world(rank, ranks, cores, memory);
  pr_measure_sizes(&world, c, argc, argv, pr_option(argc, argv, "--library", "floor"));
  int status = 0;
  if (rank + 1 < ranks) wait(&status);
  return status != 0;
}

// Shared memory, a barrier and a clock for the ranks of a benchmark, in C and C++.
#ifndef RINGREDUCE_BENCH_WORLD_H
#define RINGREDUCE_BENCH_WORLD_H

#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PR_MAX_RANKS 64
#define PR_MAX_ITERATIONS 300

// The shared memory: a barrier, and a row for each rank, which only that rank writes until the next barrier.
typedef struct {
  int arrived;
  char pad0[124];
  int generation;
  char pad1[124];
  long long wrong[PR_MAX_RANKS];
  double start[PR_MAX_RANKS][PR_MAX_ITERATIONS], stop[PR_MAX_RANKS][PR_MAX_ITERATIONS];
} pr_shared;

typedef struct {
  int rank, ranks, yields;
  pr_shared* shared;
} pr_world;

static inline double pr_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline int pr_cores(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// Binds the calling process to a core. As with MPI launchers, ranks take the cores in turn.
static inline void pr_pin(int rank) {
  cpu_set_t allowed, one;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  int skip = rank % CPU_COUNT(&allowed), core = 0;
  while (!CPU_ISSET(core, &allowed) || skip-- > 0) ++core;
  CPU_ZERO(&one);
  CPU_SET(core, &one);
  sched_setaffinity(0, sizeof one, &one);
}

// `memory` is a zeroed pr_shared that all ranks have mapped.
static inline pr_world pr_make_world(int rank, int ranks, int cores, void* memory) {
  pr_world world;
  world.rank = rank, world.ranks = ranks, world.yields = ranks > cores, world.shared = (pr_shared*)memory;
  return world;
}

// Maps a file of zeros, and returns NULL if that fails. Rank 0 creates the file, and the others open it.
static inline void* pr_map(int fd) {
  if (ftruncate(fd, (off_t)sizeof(pr_shared)) != 0) return NULL;
  void* memory = mmap(NULL, sizeof(pr_shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return memory == MAP_FAILED ? NULL : memory;
}

static inline void pr_barrier(const pr_world* world) {
  pr_shared* shared = world->shared;
  const int generation = __atomic_load_n(&shared->generation, __ATOMIC_ACQUIRE);
  if (__atomic_add_fetch(&shared->arrived, 1, __ATOMIC_ACQ_REL) == world->ranks) {
    __atomic_store_n(&shared->arrived, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&shared->generation, generation + 1, __ATOMIC_RELEASE);
    return;
  }
  // Even with a core for each rank, another process may use one, so spinning ends after a few microseconds.
  for (int spins = 0; __atomic_load_n(&shared->generation, __ATOMIC_ACQUIRE) == generation; ++spins) {
    if (world->yields || spins > 10000) sched_yield();
  }
}

static inline int pr_compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static inline double pr_quantile(const double* sorted, int n, double q) {
  const double place = q * (n - 1);
  const int low = (int)place, high = low + 1 < n ? low + 1 : low;
  return sorted[low] + (place - low) * (sorted[high] - sorted[low]);
}

#endif  // RINGREDUCE_BENCH_WORLD_H

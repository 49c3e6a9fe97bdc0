// How every benchmark program of this folder and of ours measures, in C and in C++, so that like meets like.
//
// A program supplies one function, the collective in place on a buffer, and calls pr_measure for each size:
//
//   1. warm up with single calls, from which all ranks derive the same plan: how many calls make a sample
//      (a batch) and how many samples (iterations) are taken;
//   2. for each iteration: rewrite every buffer of the batch outside the timed part, meet at a barrier, read
//      the clock, call the collective once on each buffer of the batch, read the clock;
//   3. after all iterations: an iteration's time is its slowest rank's, divided by the batch. The median and
//      the quartiles over the iterations are printed, and every element of the last results is checked.
//
// Why batches: a call of 0.2 us drowns in the clock's 25 ns and in the ranks' leaving the barrier 0.1 us
// apart. Each call of a batch has a buffer of its own that its rank has just written, as an application
// would have it; all of them fit in a core's second-level cache. A slow call needs no batch and gets none.
// Why our own barrier: each library's leaves its ranks apart by another amount, which is not the question.
#ifndef RINGREDUCE_BENCH_PROTOCOL_H
#define RINGREDUCE_BENCH_PROTOCOL_H

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
#define PR_MIN_ITERATIONS 7
#define PR_MAX_BATCH 100
#define PR_BATCH_BYTES (256u << 10)  // all buffers of a batch together
#define PR_BATCH_SECONDS 1e-3        // a batch that takes longer than this gains nothing
#define PR_WARMUP 8
#define PR_DEFAULT_BUDGET "0.5"  // seconds per size

typedef enum { PR_ALL_REDUCE, PR_REDUCE_SCATTER, PR_ALL_GATHER, PR_SCALE } pr_collective;
static const char* const pr_collective_names[] = {"all_reduce", "reduce_scatter", "all_gather", "scale"};

// What the ranks share: a barrier, and a row for each rank that only it writes until the barrier after.
typedef struct {
  int arrived;
  char pad0[124];
  int generation;
  char pad1[124];
  long long wrong[PR_MAX_RANKS];
  double seconds[PR_MAX_RANKS][PR_MAX_ITERATIONS];
} pr_shared;

typedef struct {
  int rank, ranks, yields;
  pr_shared* shared;
} pr_world;

// In place. `bytes` is the whole buffer: a reduce-scatter's input, an all-gather's output (nccl-tests' size).
typedef void (*pr_call)(void* context, float* buffer, size_t count);

typedef struct {
  pr_collective collective;
  size_t bytes;
  pr_call call;
  void* context;
  float* arena;      // at least pr_arena_bytes(bytes)
  int result_block;  // where a reduce-scatter leaves its result: MPI_IN_PLACE 0, NCCL's in place `rank`
} pr_case;

typedef struct {
  int batch, iterations;
} pr_plan;

typedef struct {
  double median, p25, p75;  // seconds
  pr_plan plan;
  long long wrong;
} pr_result;

static inline double pr_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline int pr_cores(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// `memory` is a pr_shared of zeros that all ranks have mapped.
static inline pr_world pr_make_world(int rank, int ranks, int cores, void* memory) {
  pr_world world;
  world.rank = rank, world.ranks = ranks, world.yields = ranks > cores, world.shared = (pr_shared*)memory;
  return world;
}

// Maps a file of zeros (rank 0 creates it, the others are told its name); NULL when that fails.
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
  // Even with a core for each rank somebody else may be on ours, so spinning ends after a few microseconds.
  for (int spins = 0; __atomic_load_n(&shared->generation, __ATOMIC_ACQUIRE) == generation; ++spins) {
    if (world->yields || spins > 10000) sched_yield();
  }
}

// Integers below 256, so that any order of summing up to 65,536 ranks gives the same float. Scattered, so
// that a chunk in the wrong place shows; different in successive iterations, so that a stale result shows.
static inline float pr_value(uint32_t rank, uint32_t index, uint32_t iteration) {
  const uint32_t seed = (rank * 2u + (iteration & 1u) + 1u) * 2246822519u;
  return (float)(((index + 1u) * 2654435761u + seed) >> 24);
}

static inline float pr_expected(const pr_world* world, const pr_case* c, size_t index, int iteration) {
  const size_t block = c->bytes / sizeof(float) / (size_t)world->ranks;
  if (c->collective == PR_SCALE)
    return 2 * pr_value((uint32_t)world->rank, (uint32_t)index, (uint32_t)iteration);
  if (c->collective == PR_ALL_GATHER) {
    return pr_value((uint32_t)(index / block), (uint32_t)index, (uint32_t)iteration);
  }
  float sum = 0;
  for (int rank = 0; rank < world->ranks; ++rank) {
    sum += pr_value((uint32_t)rank, (uint32_t)index, (uint32_t)iteration);
  }
  return sum;
}

// The buffers of a batch lie one after the other, each on cache lines of its own.
static inline size_t pr_stride(size_t bytes) {
  return (bytes + 127) / 128 * 128;
}

static inline int pr_batch(size_t bytes) {
  const size_t fit = PR_BATCH_BYTES / pr_stride(bytes);
  return fit > PR_MAX_BATCH ? PR_MAX_BATCH : fit < 1 ? 1 : (int)fit;
}

static inline size_t pr_arena_bytes(size_t bytes) {
  return pr_stride(bytes) * (size_t)pr_batch(bytes);
}

static inline float* pr_buffer(const pr_case* c, int index) {
  return c->arena + pr_stride(c->bytes) / sizeof(float) * (size_t)index;
}

// Half of the budget is left for the rewriting.
static inline pr_plan pr_make_plan(size_t bytes, double call_seconds, double budget) {
  pr_plan plan;
  const double useful = PR_BATCH_SECONDS / call_seconds;
  plan.batch = pr_batch(bytes);
  if (useful < plan.batch) plan.batch = useful < 1 ? 1 : (int)useful;
  const double fit = budget / 2 / (call_seconds * plan.batch);
  plan.iterations = fit > PR_MAX_ITERATIONS ? PR_MAX_ITERATIONS : (int)fit;
  if (plan.iterations < PR_MIN_ITERATIONS) plan.iterations = PR_MIN_ITERATIONS;
  return plan;
}

static inline void pr_sample(const pr_world* world, const pr_case* c, int batch, int iteration) {
  const size_t count = c->bytes / sizeof(float);
  for (int k = 0; k < batch; ++k) {
    float* buffer = pr_buffer(c, k);
    for (size_t i = 0; i < count; ++i) {
      buffer[i] = pr_value((uint32_t)world->rank, (uint32_t)i, (uint32_t)iteration);
    }
  }
  pr_barrier(world);
  const double start = pr_now();
  for (int k = 0; k < batch; ++k) c->call(c->context, pr_buffer(c, k), count);
  world->shared->seconds[world->rank][iteration] = (pr_now() - start) / batch;
}

static inline double pr_slowest(const pr_world* world, int iteration) {
  double slowest = 0;
  for (int rank = 0; rank < world->ranks; ++rank) {
    const double seconds = world->shared->seconds[rank][iteration];
    if (seconds > slowest) slowest = seconds;
  }
  return slowest;
}

// The fastest warm sample, because a plan must not hang on one interruption. Same on all ranks.
static inline double pr_warm_up(const pr_world* world, const pr_case* c) {
  for (int i = 0; i < PR_WARMUP; ++i) pr_sample(world, c, 1, i);
  pr_barrier(world);
  double fastest = pr_slowest(world, PR_WARMUP - 1);
  for (int i = PR_WARMUP / 2; i < PR_WARMUP - 1; ++i) {
    const double seconds = pr_slowest(world, i);
    if (seconds < fastest) fastest = seconds;
  }
  pr_barrier(world);  // nobody overwrites its row before all have read it
  return fastest > 1e-9 ? fastest : 1e-9;
}

static inline long long pr_count_wrong(const pr_world* world, const pr_case* c, pr_plan plan) {
  const size_t count = c->bytes / sizeof(float), block = count / (size_t)world->ranks;
  const int scattered = c->collective == PR_REDUCE_SCATTER;
  const size_t length = scattered ? block : count;
  const size_t first = scattered ? block * (size_t)world->rank : 0;
  const size_t offset = scattered ? block * (size_t)c->result_block : 0;
  long long wrong = 0;
  for (int k = 0; k < plan.batch; ++k) {
    const float* result = pr_buffer(c, k) + offset;
    for (size_t i = 0; i < length; ++i) {
      wrong += result[i] != pr_expected(world, c, first + i, plan.iterations - 1);
    }
  }
  return wrong;
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

// Every rank calls this with the same case; every rank gets the same result.
static inline pr_result pr_measure(const pr_world* world, const pr_case* c, double budget) {
  pr_result result;
  double slowest[PR_MAX_ITERATIONS];
  result.plan = pr_make_plan(c->bytes, pr_warm_up(world, c), budget);
  const int n = result.plan.iterations;
  for (int i = 0; i < n; ++i) pr_sample(world, c, result.plan.batch, i);
  world->shared->wrong[world->rank] = pr_count_wrong(world, c, result.plan);
  pr_barrier(world);
  for (int i = 0; i < n; ++i) slowest[i] = pr_slowest(world, i);
  result.wrong = 0;
  for (int rank = 0; rank < world->ranks; ++rank) result.wrong += world->shared->wrong[rank];
  pr_barrier(world);
  qsort(slowest, (size_t)n, sizeof slowest[0], pr_compare);
  result.median = pr_quantile(slowest, n, 0.5);
  result.p25 = pr_quantile(slowest, n, 0.25);
  result.p75 = pr_quantile(slowest, n, 0.75);
  return result;
}

// One JSON object on a line, at once, so that what was measured before a hang is not lost.
static inline void pr_print(const char* library, const pr_world* world, const pr_case* c,
                            const pr_result* r) {
  printf(
      "{\"library\": \"%s\", \"collective\": \"%s\", \"ranks\": %d, \"bytes\": %zu, \"median_us\": %.4f, "
      "\"p25_us\": %.4f, \"p75_us\": %.4f, \"iterations\": %d, \"batch\": %d, \"wrong\": %lld}\n",
      library, pr_collective_names[c->collective], world->ranks, c->bytes, 1e6 * r->median, 1e6 * r->p25,
      1e6 * r->p75, r->plan.iterations, r->plan.batch, r->wrong);
  fflush(stdout);
}

// The value that follows `name` on the command line. Options: --ranks, --sizes 4,1024 (bytes), --collective,
// --budget (seconds per size), --library (the name to print).
static inline const char* pr_option(int argc, char** argv, const char* name, const char* otherwise) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (strcmp(argv[i], name) == 0) return argv[i + 1];
  }
  return otherwise;
}

static inline pr_collective pr_parse_collective(const char* name) {
  for (int i = PR_ALL_REDUCE; i <= PR_SCALE; ++i) {
    if (strcmp(name, pr_collective_names[i]) == 0) return (pr_collective)i;
  }
  fprintf(stderr, "no collective is called %s\n", name);
  exit(2);
}

// Measures and prints each of the comma-separated sizes. `c` holds all but the size and the arena.
static inline void pr_measure_sizes(const pr_world* world, pr_case c, int argc, char** argv,
                                    const char* library) {
  const double budget = atof(pr_option(argc, argv, "--budget", PR_DEFAULT_BUDGET));
  const char* next = pr_option(argc, argv, "--sizes", "4,1024,65536,4194304");
  const int whole = c.collective == PR_ALL_REDUCE || c.collective == PR_SCALE;
  const size_t unit = sizeof(float) * (whole ? 1 : (size_t)world->ranks);
  while (*next != '\0') {
    char* end;
    c.bytes = strtoull(next, &end, 10);
    if (end == next || c.bytes == 0 || c.bytes % unit != 0) {
      fprintf(stderr, "--sizes takes multiples of %zu bytes, separated by commas: %s\n", unit, next);
      exit(2);
    }
    next = *end == ',' ? end + 1 : end;
    c.arena = (float*)aligned_alloc(4096, (pr_arena_bytes(c.bytes) + 4095) / 4096 * 4096);
    if (c.arena == NULL) abort();
    const pr_result result = pr_measure(world, &c, budget);
    if (world->rank == 0) pr_print(library, world, &c, &result);
    free(c.arena);
  }
}

#endif  // RINGREDUCE_BENCH_PROTOCOL_H

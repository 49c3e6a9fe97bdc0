// The measuring protocol of all benchmark programs in C and C++, which makes their figures comparable.
//
// A program provides one function, which runs the collective in place on a buffer, and calls pr_measure for
// each size. pr_measure does this:
//
//   1. Warm up with single calls. From their times all ranks derive the same plan: the number of calls in a
//      sample (the batch) and the number of samples (iterations).
//   2. For each iteration: rewrite every buffer of the batch outside the timed part, meet at a barrier, read
//      the clock, call the collective once on each buffer of the batch, read the clock, and meet again.
//      (If ranks share a core, a rank that starts rewriting would take it from ranks still in the call.)
//   3. After all iterations: print the median and the quartiles over the iterations, and check every element
//      of the last results. The time of an iteration is that of its slowest rank, divided by the batch.
//
// Batches are needed because a call of 0.2 us is too short for a clock that takes 25 ns and for ranks that
// leave the barrier 0.1 us apart. Each call of a batch has its own buffer, which its rank has just written,
// as in an application. All of them fit in a core's second-level cache. A slow call needs no batch and gets
// none. All programs use this barrier, because each library's own releases its ranks with different delays.
#ifndef RINGREDUCE_BENCH_PROTOCOL_H
#define RINGREDUCE_BENCH_PROTOCOL_H

#include "world.h"

#define PR_MIN_ITERATIONS 7
#define PR_MAX_BATCH 100
#define PR_BATCH_BYTES (256u << 10)  // all buffers of a batch together
#define PR_BATCH_SECONDS 1e-3        // a batch that takes longer than this gains nothing
#define PR_WARMUP 8
#define PR_DEFAULT_BUDGET "0.5"  // seconds per size

typedef enum { PR_ALL_REDUCE, PR_REDUCE_SCATTER, PR_ALL_GATHER, PR_SCALE } pr_collective;
static const char* const pr_collective_names[] = {"all_reduce", "reduce_scatter", "all_gather", "scale"};

// Runs the collective in place. The buffer is the whole input of a reduce-scatter or output of an all-gather.
typedef void (*pr_call)(void* context, float* buffer, size_t count);

typedef struct {
  pr_collective collective;
  size_t bytes;
  pr_call call;
  void* context;
  // These allocate and free the arena. If they are NULL, pr_measure_sizes uses ordinary memory.
  float* (*allocate)(void* context, size_t bytes);
  void (*release)(void* context, float* arena);
  float* arena;      // at least pr_arena_bytes(bytes); pr_measure_sizes sets it
  int result_block;  // the block with a reduce-scatter's result: 0 with MPI_IN_PLACE, `rank` with NCCL
} pr_case;

typedef struct {
  int batch, iterations;
} pr_plan;

typedef struct {
  double median, p25, p75;  // seconds
  pr_plan plan;
  long long wrong;
} pr_result;

// Returns integers below 256, so that sums over up to 65,536 ranks are the same floats in any order. The
// values are scattered, to detect chunks in the wrong place, and differ between iterations, to detect stale
// results.
static inline float pr_value(uint32_t rank, uint32_t index, uint32_t iteration) {
  const uint32_t seed = (rank * 2u + (iteration & 1u) + 1u) * 2246822519u;
  return (float)(((index + 1u) * 2654435761u + seed) >> 24);
}

static inline float pr_expected(const pr_world* world, const pr_case* c, size_t index, int iteration) {
  const size_t block = c->bytes / sizeof(float) / (size_t)world->ranks;
  const uint32_t own = (uint32_t)world->rank;
  if (c->collective == PR_SCALE) return 2 * pr_value(own, (uint32_t)index, (uint32_t)iteration);
  if (c->collective == PR_ALL_GATHER) {
    return pr_value((uint32_t)(index / block), (uint32_t)index, (uint32_t)iteration);
  }
  float sum = 0;
  for (int rank = 0; rank < world->ranks; ++rank) {
    sum += pr_value((uint32_t)rank, (uint32_t)index, (uint32_t)iteration);
  }
  return sum;
}

// The buffers of a batch lie one after the other, each on its own cache lines.
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

// Half of the budget is reserved for rewriting the buffers.
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
  world->shared->stop[world->rank][iteration] = pr_now();
  world->shared->start[world->rank][iteration] = start;
  pr_barrier(world);
}

// Returns the time of a call on the slowest rank. When ranks scale their buffers, they do not wait for each
// other, so ranks that share a core would be timed one after the other, as if each were alone. The time is
// then that from the first start to the last end.
static inline double pr_slowest(const pr_world* world, const pr_case* c, int batch, int iteration) {
  const pr_shared* shared = world->shared;
  double slowest = 0, first = shared->start[0][iteration], last = shared->stop[0][iteration];
  for (int rank = 0; rank < world->ranks; ++rank) {
    const double start = shared->start[rank][iteration], stop = shared->stop[rank][iteration];
    if (stop - start > slowest) slowest = stop - start;
    if (start < first) first = start;
    if (stop > last) last = stop;
  }
  return (c->collective == PR_SCALE ? last - first : slowest) / batch;
}

// Returns the time of the fastest warm sample, so that a single interruption does not determine the plan. The
// result is the same on all ranks.
static inline double pr_warm_up(const pr_world* world, const pr_case* c) {
  for (int i = 0; i < PR_WARMUP; ++i) pr_sample(world, c, 1, i);
  double fastest = pr_slowest(world, c, 1, PR_WARMUP - 1);
  for (int i = PR_WARMUP / 2; i < PR_WARMUP - 1; ++i) {
    const double seconds = pr_slowest(world, c, 1, i);
    if (seconds < fastest) fastest = seconds;
  }
  pr_barrier(world);  // no rank may overwrite its row before all ranks have read it
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

// Measures a case. Every rank must call it with the same case, and gets the same result.
static inline pr_result pr_measure(const pr_world* world, const pr_case* c, double budget) {
  pr_result result;
  double slowest[PR_MAX_ITERATIONS];
  result.plan = pr_make_plan(c->bytes, pr_warm_up(world, c), budget);
  const int n = result.plan.iterations;
  for (int i = 0; i < n; ++i) pr_sample(world, c, result.plan.batch, i);
  world->shared->wrong[world->rank] = pr_count_wrong(world, c, result.plan);
  pr_barrier(world);
  for (int i = 0; i < n; ++i) slowest[i] = pr_slowest(world, c, result.plan.batch, i);
  result.wrong = 0;
  for (int rank = 0; rank < world->ranks; ++rank) result.wrong += world->shared->wrong[rank];
  pr_barrier(world);
  qsort(slowest, (size_t)n, sizeof slowest[0], pr_compare);
  result.median = pr_quantile(slowest, n, 0.5);
  result.p25 = pr_quantile(slowest, n, 0.25);
  result.p75 = pr_quantile(slowest, n, 0.75);
  return result;
}

// Prints a line with a JSON object, and flushes it, so that a later hang does not lose it.
static inline void pr_print(const char* library, const pr_world* world, const pr_case* c,
                            const pr_result* r) {
  printf(
      "{\"library\": \"%s\", \"collective\": \"%s\", \"ranks\": %d, \"bytes\": %zu, \"median_us\": %.4f, "
      "\"p25_us\": %.4f, \"p75_us\": %.4f, \"iterations\": %d, \"batch\": %d, \"wrong\": %lld}\n",
      library, pr_collective_names[c->collective], world->ranks, c->bytes, 1e6 * r->median, 1e6 * r->p25,
      1e6 * r->p75, r->plan.iterations, r->plan.batch, r->wrong);
  fflush(stdout);
}

// Returns the value that follows `name` on the command line. The options are --ranks, --sizes 4,1024 (bytes),
// --collective, --budget (seconds per size) and --library (the name to print).
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

// Measures and prints each of the comma-separated sizes. `c` holds everything but the size and the arena.
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
    const size_t arena_bytes = (pr_arena_bytes(c.bytes) + 4095) / 4096 * 4096;
    c.arena = (float*)(c.allocate ? c.allocate(c.context, arena_bytes) : aligned_alloc(4096, arena_bytes));
    if (c.arena == NULL) abort();
    const pr_result result = pr_measure(world, &c, budget);
    if (world->rank == 0) pr_print(library, world, &c, &result);
    if (c.release) c.release(c.context, c.arena);
    if (!c.allocate) free(c.arena);
  }
}

#endif  // RINGREDUCE_BENCH_PROTOCOL_H

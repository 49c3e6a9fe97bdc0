// The measuring protocol of all benchmark programs in C and C++, which makes their figures comparable.
//
// A program provides one function, which runs the collective in place on a buffer, and calls pr_measure for
// each size. An all-to-all has another buffer for its result, as most callers do. pr_measure does this:
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

// The collectives, as csrc/schedule/collective.h lists them, and the floor.
typedef enum {
  PR_NOTHING,
  PR_WHOLE,
  PR_ON_ROOT,
  PR_OWN_BLOCK,
  PR_EXCHANGED,
  PR_UP_TO_OWN,
  PR_BEFORE_OWN
} pr_holds;

typedef struct {
  const char* name;
  int reduces;
  pr_holds before, after;  // what a rank's buffer holds
} pr_collective;

static const pr_collective pr_collectives[] = {
    {"all_reduce", 1, PR_WHOLE, PR_WHOLE},     {"reduce_scatter", 1, PR_WHOLE, PR_OWN_BLOCK},
    {"all_gather", 0, PR_OWN_BLOCK, PR_WHOLE}, {"broadcast", 0, PR_ON_ROOT, PR_WHOLE},
    {"reduce", 1, PR_WHOLE, PR_ON_ROOT},       {"gather", 0, PR_OWN_BLOCK, PR_ON_ROOT},
    {"scatter", 0, PR_ON_ROOT, PR_OWN_BLOCK},  {"all_to_all", 0, PR_EXCHANGED, PR_EXCHANGED},
    {"scan", 1, PR_WHOLE, PR_UP_TO_OWN},       {"exscan", 1, PR_WHOLE, PR_BEFORE_OWN},
    {"barrier", 0, PR_NOTHING, PR_NOTHING},    {"scale", 0, PR_WHOLE, PR_WHOLE},
};
enum { PR_COLLECTIVES = sizeof pr_collectives / sizeof pr_collectives[0], PR_SCALE = PR_COLLECTIVES - 1 };

// Runs the collective. The buffer holds all blocks, each at its place. The root is rank 0. `result` is the
// buffer, except of an all-to-all.
typedef void (*pr_call)(void* context, float* buffer, float* result, size_t count);

typedef struct {
  int collective;  // its place in pr_collectives
  int uneven;      // "all_gather_v" and so on: blocks of different lengths, see pr_offset
  size_t bytes;
  pr_call call;
  void* context;
  // These allocate and free the arenas. If they are NULL, pr_measure_sizes uses ordinary memory.
  float* (*allocate)(void* context, size_t bytes);
  void (*release)(void* context, float* arena);
  float *arena, *results;  // at least pr_arena_bytes(bytes); pr_measure_sizes sets them
  int result_first;  // a reduce-scatter's result is at the beginning of the buffer, as with MPI_IN_PLACE
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

static inline const pr_collective* pr_facts(const pr_case* c) {
  return &pr_collectives[c->collective];
}

static inline int pr_has_blocks(const pr_collective* facts) {
  return facts->before == PR_OWN_BLOCK || facts->after == PR_OWN_BLOCK || facts->before == PR_EXCHANGED;
}

// Where a rank's block begins; that of rank `ranks` is the end. Uneven blocks grow with the rank.
static inline size_t pr_offset(const pr_world* world, const pr_case* c, int rank) {
  const size_t count = c->bytes / sizeof(float), n = (size_t)world->ranks, r = (size_t)rank;
  return c->uneven ? count * r * (r + 1) / (n * (n + 1)) : count / n * r;
}

static inline size_t pr_length(const pr_world* world, const pr_case* c, int rank) {
  return pr_offset(world, c, rank + 1) - pr_offset(world, c, rank);
}

// Of the blocks that a rank sends in an all-to-all, and of those that it receives: each pair of ranks sends
// each other as much.
static inline size_t pr_exchanged(const pr_world* world, const pr_case* c, int rank, int other) {
  return pr_length(world, c, (rank + other) % world->ranks);
}

static inline size_t pr_exchange_offset(const pr_world* world, const pr_case* c, int rank, int other) {
  size_t offset = 0;
  for (int k = 0; k < other; ++k) offset += pr_exchanged(world, c, rank, k);
  return offset;
}

// A part of a rank's result: its place, and the place and the ranks that its values come from.
typedef struct {
  size_t at, from, length;
  int first, end;
} pr_part;

// Returns the part that comes from rank k, or in part 0 the whole result. Others are empty.
static inline pr_part pr_part_of(const pr_world* world, const pr_case* c, int k) {
  const pr_collective* facts = pr_facts(c);
  const int me = world->rank;
  const size_t own = pr_offset(world, c, me), place = pr_offset(world, c, k);
  pr_part part = {0, 0, 0, 0, world->ranks};
  if (!facts->reduces) {
    part.first = facts->before == PR_ON_ROOT ? 0 : me;
    part.end = part.first + 1;
  }
  if (facts->after == PR_NOTHING || (facts->after == PR_ON_ROOT && me != 0)) return part;
  if (facts->after == PR_UP_TO_OWN) part.end = me + 1;
  if (facts->after == PR_BEFORE_OWN) part.end = me;
  if (part.end == 0) return part;
  if (facts->after == PR_EXCHANGED) {
    part.at = pr_exchange_offset(world, c, me, k), part.from = pr_exchange_offset(world, c, k, me);
    part.length = pr_exchanged(world, c, me, k), part.first = k, part.end = k + 1;
  } else if (facts->before == PR_OWN_BLOCK) {
    part.at = part.from = place, part.length = pr_length(world, c, k), part.first = k, part.end = k + 1;
  } else if (k == 0 && facts->after == PR_OWN_BLOCK) {
    part.at = facts->reduces && c->result_first ? 0 : own, part.from = own;
    part.length = pr_length(world, c, me);
  } else if (k == 0) {
    part.length = c->bytes / sizeof(float);
  }
  return part;
}

static inline float pr_expected(const pr_case* c, pr_part part, size_t index, int iteration) {
  float sum = 0;
  for (int rank = part.first; rank < part.end; ++rank) {
    sum += pr_value((uint32_t)rank, (uint32_t)index, (uint32_t)iteration);
  }
  return c->collective == PR_SCALE ? 2 * sum : sum;
}

// The buffers of a batch lie one after the other, each on its own cache lines.
static inline size_t pr_stride(size_t bytes) {
  return (bytes + 127) / 128 * 128;
}

static inline int pr_batch(size_t bytes) {
  const size_t fit = PR_BATCH_BYTES / (bytes ? pr_stride(bytes) : 1);
  return fit > PR_MAX_BATCH ? PR_MAX_BATCH : fit < 1 ? 1 : (int)fit;
}

static inline size_t pr_arena_bytes(size_t bytes) {
  return pr_stride(bytes) * (size_t)pr_batch(bytes);
}

static inline size_t pr_place(const pr_case* c, int index) {
  return pr_stride(c->bytes) / sizeof(float) * (size_t)index;
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
    float* buffer = c->arena + pr_place(c, k);
    for (size_t i = 0; i < count; ++i) {
      buffer[i] = pr_value((uint32_t)world->rank, (uint32_t)i, (uint32_t)iteration);
    }
  }
  pr_barrier(world);
  const double start = pr_now();
  for (int k = 0; k < batch; ++k) {
    c->call(c->context, c->arena + pr_place(c, k), c->results + pr_place(c, k), count);
  }
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
  long long wrong = 0;
  for (int k = 0; k < world->ranks; ++k) {
    const pr_part part = pr_part_of(world, c, k);
    for (size_t i = 0; i < part.length; ++i) {
      const float right = pr_expected(c, part, part.from + i, plan.iterations - 1);
      for (int b = 0; b < plan.batch; ++b) wrong += c->results[pr_place(c, b) + part.at + i] != right;
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
      "{\"library\": \"%s\", \"collective\": \"%s%s\", \"ranks\": %d, \"bytes\": %zu, \"median_us\": %.4f, "
      "\"p25_us\": %.4f, \"p75_us\": %.4f, \"iterations\": %d, \"batch\": %d, \"wrong\": %lld}\n",
      library, pr_facts(c)->name, c->uneven ? "_v" : "", world->ranks, c->bytes, 1e6 * r->median,
      1e6 * r->p25, 1e6 * r->p75, r->plan.iterations, r->plan.batch, r->wrong);
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

// Sets the collective from its name. "_v" after one with blocks makes them uneven.
static inline void pr_parse_collective(pr_case* c, const char* name) {
  for (c->collective = 0; c->collective < PR_COLLECTIVES; ++c->collective) {
    const size_t length = strlen(pr_facts(c)->name);
    if (strncmp(name, pr_facts(c)->name, length) != 0) continue;
    c->uneven = pr_has_blocks(pr_facts(c)) && strcmp(name + length, "_v") == 0;
    if (c->uneven || name[length] == '\0') return;
  }
  fprintf(stderr, "no collective is called %s\n", name);
  exit(2);
}

static inline float* pr_allocate(const pr_case* c) {
  const size_t bytes = (pr_arena_bytes(c->bytes) / 4096 + 1) * 4096;
  float* arena = (float*)(c->allocate ? c->allocate(c->context, bytes) : aligned_alloc(4096, bytes));
  if (arena == NULL) abort();
  return arena;
}

static inline void pr_free(const pr_case* c, float* arena) {
  c->release ? c->release(c->context, arena) : free(arena);
}

// Measures and prints each of the comma-separated sizes, which are 0 for a barrier. `c` holds everything but
// the size and the arenas.
static inline void pr_measure_sizes(const pr_world* world, pr_case c, int argc, char** argv,
                                    const char* library) {
  const double budget = atof(pr_option(argc, argv, "--budget", PR_DEFAULT_BUDGET));
  const char* next = pr_option(argc, argv, "--sizes", "4,1024,65536,4194304");
  const pr_collective* facts = pr_facts(&c);
  const size_t unit = sizeof(float) * (pr_has_blocks(facts) ? (size_t)world->ranks : 1);
  while (*next != '\0') {
    char* end;
    c.bytes = strtoull(next, &end, 10);
    if (end == next || (c.bytes == 0) != (facts->before == PR_NOTHING) || c.bytes % unit != 0) {
      fprintf(stderr, "--sizes takes multiples of %zu bytes, separated by commas: %s\n", unit, next);
      exit(2);
    }
    next = *end == ',' ? end + 1 : end;
    c.arena = pr_allocate(&c);
    c.results = facts->before == PR_EXCHANGED ? pr_allocate(&c) : c.arena;
    const pr_result result = pr_measure(world, &c, budget);
    if (world->rank == 0) pr_print(library, world, &c, &result);
    if (c.results != c.arena) pr_free(&c, c.results);
    pr_free(&c, c.arena);
  }
}

#endif  // RINGREDUCE_BENCH_PROTOCOL_H

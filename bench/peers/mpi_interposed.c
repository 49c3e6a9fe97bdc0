// Times an MPI library's collectives and the interposer that LD_PRELOAD puts in front of them. Both are
// called in turn in the same processes, so that disturbances of the machine affect both. If the interposer is
// loaded, it provides the MPI_ functions; PMPI_ functions are the library's own. Samples follow protocol.h.
//
//   mpi_interposed --function allreduce --sizes 4,1024 --budget 0.5
//
// `sizes` are total bytes: of the whole buffer, or of the blocks of all ranks together. A function whose name
// begins with i is timed together with the MPI_Wait that follows it.
#define _GNU_SOURCE
#include <fcntl.h>
#include <mpi.h>

#include "protocol.h"

enum { MOST_SAMPLES = PR_MAX_ITERATIONS / 2 };

typedef struct {
  float *send, *receive;
  int count, block;  // elements of the whole buffer, and of one rank's block
  int blocks[PR_MAX_RANKS], offsets[PR_MAX_RANKS];
} buffers;

typedef void (*timed)(const buffers* b);

// Defines both versions of a function from its arguments.
#define BOTH(name, function, ...)             \
  static void name##_ours(const buffers* b) { \
    (void)b;                                  \
    MPI_##function(__VA_ARGS__);              \
  }                                           \
  static void name##_own(const buffers* b) {  \
    (void)b;                                  \
    PMPI_##function(__VA_ARGS__);             \
  }
#define BOTH_WAITED(name, function, ...)      \
  static void name##_ours(const buffers* b) { \
    MPI_Request request;                      \
    (void)b;                                  \
    MPI_##function(__VA_ARGS__, &request);    \
    MPI_Wait(&request, MPI_STATUS_IGNORE);    \
  }                                           \
  static void name##_own(const buffers* b) {  \
    MPI_Request request;                      \
    (void)b;                                  \
    PMPI_##function(__VA_ARGS__, &request);   \
    MPI_Wait(&request, MPI_STATUS_IGNORE);    \
  }

static MPI_Op op = MPI_SUM;

static void add(void* in, void* so_far, int* count, MPI_Datatype* type) {
  (void)type;
  for (int i = 0; i < *count; ++i) ((float*)so_far)[i] += ((float*)in)[i];
}

#define WORLD MPI_COMM_WORLD
BOTH(allreduce, Allreduce, MPI_IN_PLACE, b->send, b->count, MPI_FLOAT, op, WORLD)
BOTH(reduce, Reduce, b->send, b->receive, b->count, MPI_FLOAT, op, 0, WORLD)
BOTH(scan, Scan, b->send, b->receive, b->count, MPI_FLOAT, op, WORLD)
BOTH(exscan, Exscan, b->send, b->receive, b->count, MPI_FLOAT, op, WORLD)
BOTH(reduce_scatter, Reduce_scatter, b->send, b->receive, b->blocks, MPI_FLOAT, op, WORLD)
BOTH(reduce_scatter_block, Reduce_scatter_block, b->send, b->receive, b->block, MPI_FLOAT, op, WORLD)
BOTH(allgather, Allgather, b->send, b->block, MPI_FLOAT, b->receive, b->block, MPI_FLOAT, WORLD)
BOTH(allgatherv, Allgatherv, b->send, b->block, MPI_FLOAT, b->receive, b->blocks, b->offsets, MPI_FLOAT,
     WORLD)
BOTH(gather, Gather, b->send, b->block, MPI_FLOAT, b->receive, b->block, MPI_FLOAT, 0, WORLD)
BOTH(gatherv, Gatherv, b->send, b->block, MPI_FLOAT, b->receive, b->blocks, b->offsets, MPI_FLOAT, 0, WORLD)
BOTH(scatter, Scatter, b->send, b->block, MPI_FLOAT, b->receive, b->block, MPI_FLOAT, 0, WORLD)
BOTH(scatterv, Scatterv, b->send, b->blocks, b->offsets, MPI_FLOAT, b->receive, b->block, MPI_FLOAT, 0, WORLD)
BOTH(alltoall, Alltoall, b->send, b->block, MPI_FLOAT, b->receive, b->block, MPI_FLOAT, WORLD)
BOTH(alltoallv, Alltoallv, b->send, b->blocks, b->offsets, MPI_FLOAT, b->receive, b->blocks, b->offsets,
     MPI_FLOAT, WORLD)
BOTH(bcast, Bcast, b->send, b->count, MPI_FLOAT, 0, WORLD)
BOTH(barrier, Barrier, WORLD)
BOTH_WAITED(iallreduce, Iallreduce, MPI_IN_PLACE, b->send, b->count, MPI_FLOAT, op, WORLD)
BOTH_WAITED(iallgather, Iallgather, b->send, b->block, MPI_FLOAT, b->receive, b->block, MPI_FLOAT, WORLD)
BOTH_WAITED(ialltoall, Ialltoall, b->send, b->block, MPI_FLOAT, b->receive, b->block, MPI_FLOAT, WORLD)
BOTH_WAITED(ibcast, Ibcast, b->send, b->count, MPI_FLOAT, 0, WORLD)
BOTH_WAITED(ibarrier, Ibarrier, WORLD)

static const struct {
  const char* name;
  timed ways[2];  // the library's own, ours
} functions[] = {
#define ENTRY(name)           \
  {                           \
    #name, {                  \
      name##_own, name##_ours \
    }                         \
  }
    ENTRY(scan),      ENTRY(exscan),         ENTRY(allreduce),
    ENTRY(reduce),    ENTRY(reduce_scatter), ENTRY(reduce_scatter_block),
    ENTRY(allgather), ENTRY(allgatherv),     ENTRY(gather),
    ENTRY(gatherv),   ENTRY(scatter),        ENTRY(scatterv),
    ENTRY(alltoall),  ENTRY(alltoallv),      ENTRY(bcast),
    ENTRY(barrier),   ENTRY(iallreduce),     ENTRY(iallgather),
    ENTRY(ialltoall), ENTRY(ibcast),         ENTRY(ibarrier),
};

// mpirun starts the ranks, so they share memory through a file, which is unlinked before anything is timed.
static void* map_shared(int rank) {
  char path[] = "/dev/shm/ringreduce-bench-XXXXXX";
  int fd = rank == 0 ? mkstemp(path) : -1;
  PMPI_Bcast(path, sizeof path, MPI_CHAR, 0, MPI_COMM_WORLD);
  if (rank != 0) fd = open(path, O_RDWR | O_CLOEXEC);
  void* memory = fd < 0 ? NULL : pr_map(fd);
  if (memory == NULL) PMPI_Abort(MPI_COMM_WORLD, 1);
  close(fd);
  PMPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) unlink(path);
  return memory;
}

static void sample(const pr_world* world, timed call, buffers b, size_t stride, int batch, int at) {
  float* const send = b.send;
  for (int k = 0; k < batch; ++k) {
    for (int i = 0; i < b.count; ++i)
      send[stride * (size_t)k + (size_t)i] = pr_value((uint32_t)world->rank, (uint32_t)i, 0);
  }
  pr_barrier(world);
  const double start = pr_now();
  for (int k = 0; k < batch; ++k) {
    call(&b);
    b.send += stride, b.receive += stride;
  }
  world->shared->stop[world->rank][at] = pr_now();
  world->shared->start[world->rank][at] = start;
  pr_barrier(world);
}

static double slowest(const pr_world* world, int batch, int at) {
  double most = 0;
  for (int rank = 0; rank < world->ranks; ++rank) {
    const double seconds = world->shared->stop[rank][at] - world->shared->start[rank][at];
    if (seconds > most) most = seconds;
  }
  return most / batch;
}

static int from_mpi;  // whether buffers come from MPI_Alloc_mem

static void allocate(float** memory, size_t bytes) {
  bytes = (bytes + 4095) / 4096 * 4096;
  if (from_mpi) {
    MPI_Alloc_mem((MPI_Aint)bytes, MPI_INFO_NULL, memory);
  } else {
    *memory = aligned_alloc(4096, bytes);
  }
}

static void release(float* memory) {
  from_mpi ? (void)MPI_Free_mem(memory) : free(memory);
}

// Times both versions in turn, and prints medians and quartiles.
static void measure(const pr_world* world, const char* name, const timed ways[2], size_t bytes,
                    double budget) {
  buffers b;
  const size_t stride = pr_stride(bytes) / sizeof(float), arena = pr_arena_bytes(bytes) + 4096;
  allocate(&b.send, arena);
  allocate(&b.receive, arena);
  memset(b.receive, 0, arena);
  b.count = (int)(bytes / sizeof(float));
  b.block = b.count / world->ranks;
  for (int i = 0; i < world->ranks; ++i) b.blocks[i] = b.block, b.offsets[i] = i * b.block;
  for (int i = 0; i < 40; ++i) sample(world, ways[i % 2], b, stride, 1, i);
  double call = 1e-9;
  for (int i = 24; i < 40; ++i) {
    const double seconds = slowest(world, 1, i);
    if (i == 24 || seconds < call) call = seconds > 1e-9 ? seconds : 1e-9;
  }
  pr_barrier(world);
  pr_plan plan = pr_make_plan(bytes, call, budget / 2);
  if (plan.iterations > MOST_SAMPLES) plan.iterations = MOST_SAMPLES;
  for (int i = 0; i < plan.iterations; ++i) {
    for (int k = 0; k < 2; ++k) {
      const int way = (i + k) % 2;
      sample(world, ways[way], b, stride, plan.batch, 2 * i + way);
    }
  }
  double times[2][MOST_SAMPLES], quartiles[2][3];
  for (int way = 0; way < 2; ++way) {
    for (int i = 0; i < plan.iterations; ++i) times[way][i] = 1e6 * slowest(world, plan.batch, 2 * i + way);
    qsort(times[way], (size_t)plan.iterations, sizeof times[way][0], pr_compare);
    for (int q = 0; q < 3; ++q) quartiles[way][q] = pr_quantile(times[way], plan.iterations, 0.25 * (q + 1));
  }
  pr_barrier(world);
  if (world->rank == 0) {
    printf(
        "{\"function\": \"%s\", \"ranks\": %d, \"bytes\": %zu, \"own_us\": [%.4f, %.4f, %.4f], "
        "\"ours_us\": [%.4f, %.4f, %.4f]}\n",
        name, world->ranks, bytes, quartiles[0][0], quartiles[0][1], quartiles[0][2], quartiles[1][0],
        quartiles[1][1], quartiles[1][2]);
    fflush(stdout);
  }
  release(b.send);
  release(b.receive);
}

int main(int argc, char** argv) {
  const int cores = (int)sysconf(_SC_NPROCESSORS_ONLN);  // not the affinity: mpirun may have bound this rank
  const char* wanted = pr_option(argc, argv, "--function", "allreduce");
  from_mpi = strcmp(pr_option(argc, argv, "--memory", "ordinary"), "mpi") == 0;
  const double budget = atof(pr_option(argc, argv, "--budget", PR_DEFAULT_BUDGET));
  int rank, ranks, level;
  MPI_Init_thread(&argc, &argv, wanted[0] == 'i' ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (strcmp(pr_option(argc, argv, "--op", "sum"), "user") == 0) MPI_Op_create(add, 1, &op);
  const pr_world world = pr_make_world(rank, ranks, cores, map_shared(rank));
  // A nonblocking call does not make a group, so a blocking one must come first. In addition, the first pass
  // through a ring of messages touches new memory.
  float few[32] = {0};
  for (int i = 0; i < 20000 / ranks; ++i) MPI_Allreduce(MPI_IN_PLACE, few, 32, MPI_FLOAT, op, MPI_COMM_WORLD);
  for (size_t f = 0; f < sizeof functions / sizeof functions[0]; ++f) {
    if (strcmp(functions[f].name, wanted) != 0) continue;
    const char* next = pr_option(argc, argv, "--sizes", "4,1024,65536,4194304");
    while (*next != '\0') {
      char* end;
      const size_t bytes = strtoull(next, &end, 10);
      if (end == next) break;
      measure(&world, wanted, functions[f].ways, bytes, budget);
      next = *end == ',' ? end + 1 : end;
    }
  }
  MPI_Finalize();
  return 0;
}

// Times an MPI library's collectives, float32 sum, by the rules of protocol.h. Compiled with each
// library's mpicc; started by its mpirun.
#define _GNU_SOURCE
#include "mpi_world.h"

#define WORLD MPI_COMM_WORLD

// The blocks of one size. Those of an all-to-all differ from the others'.
typedef struct {
  const pr_case* asked;
  pr_world world;
  size_t bytes;  // that the blocks were computed for
  int block, counts[PR_MAX_RANKS], offsets[PR_MAX_RANKS];
} blocks;

static void compute(blocks* b, size_t bytes) {
  pr_case c = *b->asked;
  const int exchanged = pr_facts(&c)->before == PR_EXCHANGED, rank = b->world.rank;
  c.bytes = b->bytes = bytes;
  for (int k = 0; k < b->world.ranks; ++k) {
    const size_t count = exchanged ? pr_exchanged(&b->world, &c, rank, k) : pr_length(&b->world, &c, k);
    const size_t offset =
        exchanged ? pr_exchange_offset(&b->world, &c, rank, k) : pr_offset(&b->world, &c, k);
    b->counts[k] = (int)count, b->offsets[k] = (int)offset;
  }
  b->block = b->counts[rank];
}

// Defines a call. In it, `own` is this rank's block and `root` whether it is the root.
#define CALL(name, ...)                                                         \
  static void name(void* context, float* buffer, float* result, size_t count) { \
    blocks* const b = context;                                                  \
    if (b->bytes != count * sizeof(float)) compute(b, count * sizeof(float));   \
    float* const own = buffer + b->offsets[b->world.rank];                      \
    const int root = b->world.rank == 0, whole = (int)count;                    \
    (void)own, (void)root, (void)whole, (void)result;                           \
    __VA_ARGS__;                                                                \
  }

CALL(all_reduce, MPI_Allreduce(MPI_IN_PLACE, buffer, whole, MPI_FLOAT, MPI_SUM, WORLD))
CALL(reduce_scatter, MPI_Reduce_scatter_block(MPI_IN_PLACE, buffer, b->block, MPI_FLOAT, MPI_SUM, WORLD))
CALL(reduce_scatter_v, MPI_Reduce_scatter(MPI_IN_PLACE, buffer, b->counts, MPI_FLOAT, MPI_SUM, WORLD))
CALL(all_gather, MPI_Allgather(MPI_IN_PLACE, 0, MPI_FLOAT, buffer, b->block, MPI_FLOAT, WORLD))
CALL(all_gather_v,
     MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_FLOAT, buffer, b->counts, b->offsets, MPI_FLOAT, WORLD))
CALL(broadcast, MPI_Bcast(buffer, whole, MPI_FLOAT, 0, WORLD))
CALL(reduce, MPI_Reduce(root ? MPI_IN_PLACE : buffer, buffer, whole, MPI_FLOAT, MPI_SUM, 0, WORLD))
CALL(gather,
     MPI_Gather(root ? MPI_IN_PLACE : own, b->block, MPI_FLOAT, buffer, b->block, MPI_FLOAT, 0, WORLD))
CALL(gather_v, MPI_Gatherv(root ? MPI_IN_PLACE : own, b->block, MPI_FLOAT, buffer, b->counts, b->offsets,
                           MPI_FLOAT, 0, WORLD))
CALL(scatter,
     MPI_Scatter(buffer, b->block, MPI_FLOAT, root ? MPI_IN_PLACE : own, b->block, MPI_FLOAT, 0, WORLD))
CALL(scatter_v, MPI_Scatterv(buffer, b->counts, b->offsets, MPI_FLOAT, root ? MPI_IN_PLACE : own, b->block,
                             MPI_FLOAT, 0, WORLD))
CALL(all_to_all, MPI_Alltoall(buffer, b->block, MPI_FLOAT, result, b->block, MPI_FLOAT, WORLD))
CALL(all_to_all_v,
     MPI_Alltoallv(buffer, b->counts, b->offsets, MPI_FLOAT, result, b->counts, b->offsets, MPI_FLOAT, WORLD))
CALL(scan, MPI_Scan(MPI_IN_PLACE, buffer, whole, MPI_FLOAT, MPI_SUM, WORLD))
CALL(exscan, MPI_Exscan(MPI_IN_PLACE, buffer, whole, MPI_FLOAT, MPI_SUM, WORLD))
CALL(barrier, MPI_Barrier(WORLD))

// In the order of pr_collectives, each with its form for uneven blocks.
static const pr_call calls[PR_SCALE][2] = {
    {all_reduce},
    {reduce_scatter, reduce_scatter_v},
    {all_gather, all_gather_v},
    {broadcast},
    {reduce},
    {gather, gather_v},
    {scatter, scatter_v},
    {all_to_all, all_to_all_v},
    {scan},
    {exscan},
    {barrier},
};

int main(int argc, char** argv) {
  const int cores = (int)sysconf(_SC_NPROCESSORS_ONLN);  // not the affinity: mpirun may have bound this rank
  int rank, ranks;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  pr_case c = {0};
  pr_parse_collective(&c, pr_option(argc, argv, "--collective", "all_reduce"));
  if (ranks > PR_MAX_RANKS || c.collective == PR_SCALE) MPI_Abort(MPI_COMM_WORLD, 2);
  const pr_world world = pr_make_world(rank, ranks, cores, map_shared(rank));
  blocks b = {&c, world, SIZE_MAX, 0, {0}, {0}};
  c.call = calls[c.collective][c.uneven];
  c.context = &b;
  c.result_first = 1;
  pr_measure_sizes(&world, c, argc, argv, pr_option(argc, argv, "--library", "mpi"));
  MPI_Finalize();
  return 0;
}

// operators [<number>]: ops of the program's own, which this rank makes after so many others.
#include <math.h>
#include <stdint.h>

#include "suite.h"

#define MOST 40000

int suite_rank, suite_threads, suite_served;

static MPI_Datatype expected_type;

static void check_type(const MPI_Datatype* type) {
  CHECK(*type == expected_type);
}

// Maps of a number, times * x + plus modulo 2^32, one after the other: associative, but not commutative.
static uint64_t map_of(int rank, int i) {
  return (uint64_t)(2 * rank + 3) << 32 | (uint32_t)(rank * 7 + i);
}

static uint64_t follow(uint64_t first, uint64_t second) {
  const uint32_t times = (uint32_t)(first >> 32) * (uint32_t)(second >> 32);
  const uint32_t plus = (uint32_t)first * (uint32_t)(second >> 32) + (uint32_t)second;
  return (uint64_t)times << 32 | plus;
}

static void follow_all(void* in, void* so_far, int* count, MPI_Datatype* type) {
  check_type(type);
  uint64_t* maps = so_far;
  for (int i = 0; i < *count; ++i) maps[i] = follow(((uint64_t*)in)[i], maps[i]);
}

static void longest(void* in, void* so_far, int* count, MPI_Datatype* type) {
  check_type(type);
  long double* far = so_far;
  for (int i = 0; i < *count; ++i) far[i] = fmaxl(fabsl(far[i]), fabsl(((long double*)in)[i]));
}

// Of any length: MPI's type says which.
static void add_pairs(void* in, void* so_far, int* count, MPI_Datatype* type) {
  int size;
  MPI_Type_size(*type, &size);
  int* sums = so_far;
  for (int i = 0; i < *count * size / (int)sizeof(int); ++i) sums[i] += ((int*)in)[i];
}

static uint64_t expected(int ranks, int i) {
  uint64_t result = map_of(0, i);
  for (int rank = 1; rank < ranks; ++rank) result = follow(result, map_of(rank, i));
  return result;
}

static void fill(uint64_t* maps, int count) {
  for (int i = 0; i < count; ++i) maps[i] = map_of(suite_rank, i);
}

static void check(const uint64_t* maps, int ranks, int first, int count) {
  for (int i = 0; i < count; ++i) CHECK(maps[i] == expected(ranks, first + i));
}

// Blocks of which one is empty, or blocks that grow with the rank: in place, a result then lies partly over
// the rank's own values.
static void test_uneven(int form, int block, int growing, MPI_Op op, MPI_Comm comm) {
  static uint64_t in[MOST], out[MOST];
  int ranks, counts[16], offset = 0;
  MPI_Comm_size(comm, &ranks);
  for (int i = 0; i < ranks; ++i) {
    counts[i] = growing ? 2 * block * (i + 1) / (ranks + 1) : i == 1 ? 0 : block;
    if (i < suite_rank) offset += counts[i];
  }
  fill(in, block * ranks);
  call_reduce_scatter(form, in, out, counts, MPI_UINT64_T, op, comm);
  check(out, ranks, offset, counts[suite_rank]);
  call_reduce_scatter(form, MPI_IN_PLACE, in, counts, MPI_UINT64_T, op, comm);
  check(in, ranks, offset, counts[suite_rank]);
}

static void test_order(int form, int n, MPI_Op op, MPI_Comm comm) {
  static uint64_t in[MOST], out[MOST];
  const MPI_Datatype type = expected_type = MPI_UINT64_T;
  int ranks;
  MPI_Comm_size(comm, &ranks);
  const int root = ranks - 1, block = n / ranks;
  fill(in, n);
  call_allreduce(form, in, out, n, type, op, comm);
  check(out, ranks, 0, n);
  fill(out, n);
  call_allreduce(form, MPI_IN_PLACE, out, n, type, op, comm);
  check(out, ranks, 0, n);
  call_reduce(form, in, out, n, type, op, root, comm);
  if (suite_rank == root) check(out, ranks, 0, n);
  call_scan(form, in, out, n, type, op, comm);
  check(out, suite_rank + 1, 0, n);
  call_exscan(form, in, out, n, type, op, comm);
  if (suite_rank > 0) check(out, suite_rank, 0, n);
  call_reduce_scatter_block(form, in, out, block, type, op, comm);
  check(out, ranks, block * suite_rank, block);
  test_uneven(form, block, 0, op, comm);
  test_uneven(form, block, 1, op, comm);
}

static void test_types(MPI_Op far, MPI_Op sum, MPI_Comm comm) {
  int ranks, pairs[6];
  MPI_Comm_size(comm, &ranks);
  long double x[3] = {suite_rank, -2 * suite_rank, 0};
  expected_type = MPI_LONG_DOUBLE;
  call_allreduce(BLOCKING, MPI_IN_PLACE, x, 3, MPI_LONG_DOUBLE, far, comm);
  CHECK(x[0] == ranks - 1 && x[1] == 2 * (ranks - 1) && x[2] == 0);
  MPI_Datatype pair;
  MPI_Type_contiguous(2, MPI_INT, &pair);
  MPI_Type_commit(&pair);
  for (int i = 0; i < 6; ++i) pairs[i] = suite_rank + i;
  call_allreduce(BLOCKING, MPI_IN_PLACE, pairs, 3, pair, sum, comm);
  for (int i = 0; i < 6; ++i) CHECK(pairs[i] == ranks * (ranks - 1) / 2 + ranks * i);
  MPI_Type_free(&pair);
}

int main(int argc, char** argv) {
  MPI_Op unused[8], in_order, far, sum;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &suite_rank);
  const int others = argc > 1 ? atoi(argv[1]) : 0;
  for (int i = 0; i < others; ++i) MPI_Op_create(add_pairs, i % 2, unused + i);
  MPI_Op_create(follow_all, 0, &in_order);
  MPI_Op_create(longest, 1, &far);
  MPI_Op_create(add_pairs, 1, &sum);
  const int sizes[] = {16, 1000, MOST};
  for (int form = 0; form < FORMS; ++form) {
    for (int s = 0; s < 3; ++s) test_order(form, sizes[s], in_order, MPI_COMM_WORLD);
  }
  test_types(far, sum, MPI_COMM_WORLD);
  MPI_Op_free(&in_order);
  MPI_Op_free(&far);
  MPI_Op_free(&sum);
  for (int i = 0; i < others; ++i) MPI_Op_free(unused + i);
  MPI_Finalize();
  return 0;
}

// Every datatype with every op: small whole numbers, of which every order gives the same result.
#include <stdint.h>

#include "suite.h"

#define MOST 64

typedef struct {
  MPI_Datatype type;
  char kind;  // i, u: integers; f: floats; c: complex numbers; b: bits
} typed;

typedef struct {
  MPI_Op op;
  int which;
  const char* kinds;
} defined;

// The complex numbers are pairs of these.
static void put(typed t, int size, void* memory, int i, double value) {
  if (t.kind == 'c') size /= 2;
  if (t.kind == 'f' || t.kind == 'c') {
    if (size == 4) ((float*)memory)[i] = (float)value;
    if (size == 8) ((double*)memory)[i] = value;
    return;
  }
  if (size == 1) ((int8_t*)memory)[i] = (int8_t)value;
  if (size == 2) ((int16_t*)memory)[i] = (int16_t)value;
  if (size == 4) ((int32_t*)memory)[i] = (int32_t)value;
  if (size == 8) ((int64_t*)memory)[i] = (int64_t)value;
}

static double get(typed t, int size, const void* memory, int i) {
  if (t.kind == 'c') size /= 2;
  if (t.kind == 'f' || t.kind == 'c') {
    return size == 4 ? (double)((const float*)memory)[i] : ((const double*)memory)[i];
  }
  if (size == 1) return ((const int8_t*)memory)[i];
  if (size == 2) return ((const int16_t*)memory)[i];
  if (size == 4) return ((const int32_t*)memory)[i];
  return (double)((const int64_t*)memory)[i];
}

// Products of five of them fit into eight bits.
static double value_of(int which, int rank, int i) {
  return which == 1 ? 1 + (rank + i) % 2 : (rank * 3 + i * 5 + i / 7) % 11;
}

static double combine(int which, double a, double b) {
  const int64_t m = (int64_t)a, n = (int64_t)b;
  switch (which) {
    case 0:
      return a + b;
    case 1:
      return a * b;
    case 2:
      return a < b ? a : b;
    case 3:
      return a > b ? a : b;
    case 4:
      return (double)(m & n);
    case 5:
      return (double)(m | n);
    default:
      return (double)(m ^ n);
  }
}

static double expected(int which, int ranks, int i) {
  double result = value_of(which, 0, i);
  for (int rank = 1; rank < ranks; ++rank) result = combine(which, result, value_of(which, rank, i));
  return result;
}

// Of element i of a complex buffer, whose parts are 2 i and 2 i + 1.
static void expected_complex(int which, int ranks, int i, double* result) {
  result[0] = value_of(which, 0, 2 * i);
  result[1] = value_of(which, 0, 2 * i + 1);
  for (int rank = 1; rank < ranks; ++rank) {
    const double re = value_of(which, rank, 2 * i), im = value_of(which, rank, 2 * i + 1);
    const double mine[2] = {result[0], result[1]};
    result[0] = which == 0 ? mine[0] + re : mine[0] * re - mine[1] * im;
    result[1] = which == 0 ? mine[1] + im : mine[0] * im + mine[1] * re;
  }
}

// Elements from `first` on have been reduced into `memory`.
static void check(typed t, int size, int which, int ranks, const void* memory, int first, int count) {
  for (int i = 0; i < count; ++i) {
    if (t.kind == 'c') {
      double both[2];
      expected_complex(which, ranks, first + i, both);
      CHECK(get(t, size, memory, 2 * i) == both[0]);
      CHECK(get(t, size, memory, 2 * i + 1) == both[1]);
    } else {
      CHECK(get(t, size, memory, i) == expected(which, ranks, first + i));
    }
  }
}

static void fill(typed t, int size, int which, int rank, void* memory, int count) {
  for (int i = 0; i < count * (t.kind == 'c' ? 2 : 1); ++i) put(t, size, memory, i, value_of(which, rank, i));
}

static void test_one(typed t, defined d, int form, MPI_Comm comm) {
  char in[MOST * 16], out[MOST * 16];
  int ranks, rank, size, counts[16], offset = 0, total = 0;
  MPI_Comm_size(comm, &ranks);
  MPI_Comm_rank(comm, &rank);
  MPI_Type_size(t.type, &size);
  const int n = 37, root = form % ranks;
  fill(t, size, d.which, rank, in, n);
  memset(out, 77, sizeof out);
  call_allreduce(form, in, out, n, t.type, d.op, comm);
  check(t, size, d.which, ranks, out, 0, n);
  fill(t, size, d.which, rank, out, n);
  call_allreduce(form, MPI_IN_PLACE, out, n, t.type, d.op, comm);
  check(t, size, d.which, ranks, out, 0, n);

  call_reduce(form, in, rank == root ? out : NULL, n, t.type, d.op, root, comm);
  if (rank == root) check(t, size, d.which, ranks, out, 0, n);
  fill(t, size, d.which, rank, out, n);
  call_reduce(form, rank == root ? MPI_IN_PLACE : out, rank == root ? out : NULL, n, t.type, d.op, root,
              comm);
  if (rank == root) check(t, size, d.which, ranks, out, 0, n);

  memset(out, 77, sizeof out);
  call_scan(form, in, out, n, t.type, d.op, comm);
  check(t, size, d.which, rank + 1, out, 0, n);
  fill(t, size, d.which, rank, out, n);
  call_scan(form, MPI_IN_PLACE, out, n, t.type, d.op, comm);
  check(t, size, d.which, rank + 1, out, 0, n);
  call_exscan(form, in, out, n, t.type, d.op, comm);
  if (rank > 0) check(t, size, d.which, rank, out, 0, n);
  if (rank == 0 && suite_served) check(t, size, d.which, 1, out, 0, n);  // it keeps what was there
  fill(t, size, d.which, rank, out, n);
  call_exscan(form, MPI_IN_PLACE, out, n, t.type, d.op, comm);
  if (rank > 0) check(t, size, d.which, rank, out, 0, n);

  const int block = 5;
  fill(t, size, d.which, rank, in, block * ranks);
  call_reduce_scatter_block(form, in, out, block, t.type, d.op, comm);
  check(t, size, d.which, ranks, out, block * rank, block);
  call_reduce_scatter_block(form, MPI_IN_PLACE, in, block, t.type, d.op, comm);
  check(t, size, d.which, ranks, in, block * rank, block);

  for (int i = 0; i < ranks; ++i) {
    counts[i] = i == 1 ? 0 : 3 * i + 1;
    if (i < rank) offset += counts[i];
    total += counts[i];
  }
  fill(t, size, d.which, rank, in, total);
  call_reduce_scatter(form, in, out, counts, t.type, d.op, comm);
  check(t, size, d.which, ranks, out, offset, counts[rank]);
  call_reduce_scatter(form, MPI_IN_PLACE, in, counts, t.type, d.op, comm);
  check(t, size, d.which, ranks, in, offset, counts[rank]);
}

// Long ones, and those of no element.
static void test_sizes(MPI_Comm comm) {
  const typed t = {MPI_FLOAT, 'f'};
  const int sizes[] = {0, 1, 3000, 300001};
  int ranks, rank;
  MPI_Comm_size(comm, &ranks);
  MPI_Comm_rank(comm, &rank);
  float* in = malloc(sizeof(float) * 300001);
  float* out = malloc(sizeof(float) * 300001);
  for (int s = 0; s < 4; ++s) {
    for (int form = 0; form < FORMS; ++form) {
      fill(t, 4, 0, rank, in, sizes[s]);
      memset(out, 0, sizeof(float) * 300001);
      call_allreduce(form, in, out, sizes[s], t.type, MPI_SUM, comm);
      check(t, 4, 0, ranks, out, 0, sizes[s]);
      call_reduce(form, in, out, sizes[s], t.type, MPI_SUM, ranks - 1, comm);
      if (rank == ranks - 1) check(t, 4, 0, ranks, out, 0, sizes[s]);
      call_scan(form, in, out, sizes[s], t.type, MPI_SUM, comm);
      check(t, 4, 0, rank + 1, out, 0, sizes[s]);
      call_exscan(form, in, out, sizes[s], t.type, MPI_SUM, comm);
      if (rank > 0) check(t, 4, 0, rank, out, 0, sizes[s]);
      call_reduce_scatter_block(form, in, out, sizes[s] / ranks, t.type, MPI_SUM, comm);
      check(t, 4, 0, ranks, out, sizes[s] / ranks * rank, sizes[s] / ranks);
    }
  }
  free(in);
  free(out);
}

// What is not ours: a program's own op, and ops on pairs and logical values.
static void add_twice(void* in, void* so_far, int* count, MPI_Datatype* type) {
  (void)type;
  for (int i = 0; i < *count; ++i) ((int*)so_far)[i] += ((int*)in)[i];
}

static void test_other_ops(MPI_Comm comm) {
  int ranks, rank;
  MPI_Comm_size(comm, &ranks);
  MPI_Comm_rank(comm, &rank);
  MPI_Op op;
  MPI_Op_create(add_twice, 1, &op);
  int sum = rank, seven = rank < 7;
  MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_INT, op, comm);
  CHECK(sum == ranks * (ranks - 1) / 2);
  MPI_Op_free(&op);
  MPI_Allreduce(MPI_IN_PLACE, &seven, 1, MPI_INT, MPI_LAND, comm);
  CHECK(seven == 1);
  struct {
    double value;
    int where;
  } pair = {rank * 2.0, rank};
  MPI_Allreduce(MPI_IN_PLACE, &pair, 1, MPI_DOUBLE_INT, MPI_MAXLOC, comm);
  CHECK(pair.where == ranks - 1 && pair.value == 2.0 * (ranks - 1));
  long double longer = rank;
  MPI_Allreduce(MPI_IN_PLACE, &longer, 1, MPI_LONG_DOUBLE, MPI_SUM, comm);
  CHECK(longer == ranks * (ranks - 1) / 2);
}

// MPI defines no reductions of MPI_CHAR. The libraries do, and ours are the same, but for what overflows:
// some of Open MPI's saturate.
static void test_chars(MPI_Comm comm) {
  const MPI_Op ops[] = {MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX, MPI_BAND, MPI_BOR, MPI_BXOR};
  const int from[] = {-12, -2, -128, -128, -128, -128, -128}, different[] = {25, 5, 256, 256, 256, 256, 256};
  char in[256], ours[256], theirs[256];
  int rank;
  MPI_Comm_rank(comm, &rank);
  for (size_t o = 0; o < sizeof ops / sizeof *ops; ++o) {
    for (int i = 0; i < 256; ++i) in[i] = (char)(from[o] + (i * (2 * rank + 1) + 77 * rank) % different[o]);
    MPI_Allreduce(in, ours, 256, MPI_CHAR, ops[o], comm);
    PMPI_Allreduce(in, theirs, 256, MPI_CHAR, ops[o], comm);
    CHECK(memcmp(ours, theirs, 256) == 0);
  }
}

void test_reductions(MPI_Comm comm) {
  const typed types[] = {
      {MPI_CHAR, 'i'},
      {MPI_SIGNED_CHAR, 'i'},
      {MPI_SHORT, 'i'},
      {MPI_INT, 'i'},
      {MPI_LONG, 'i'},
      {MPI_LONG_LONG, 'i'},
      {MPI_INT8_T, 'i'},
      {MPI_INT16_T, 'i'},
      {MPI_INT32_T, 'i'},
      {MPI_INT64_T, 'i'},
      {MPI_AINT, 'i'},
      {MPI_OFFSET, 'i'},
      {MPI_COUNT, 'i'},
      {MPI_UNSIGNED_CHAR, 'u'},
      {MPI_UNSIGNED_SHORT, 'u'},
      {MPI_UNSIGNED, 'u'},
      {MPI_UNSIGNED_LONG, 'u'},
      {MPI_UNSIGNED_LONG_LONG, 'u'},
      {MPI_UINT8_T, 'u'},
      {MPI_UINT16_T, 'u'},
      {MPI_UINT32_T, 'u'},
      {MPI_UINT64_T, 'u'},
      {MPI_FLOAT, 'f'},
      {MPI_DOUBLE, 'f'},
      {MPI_C_FLOAT_COMPLEX, 'c'},
      {MPI_C_DOUBLE_COMPLEX, 'c'},
      {MPI_BYTE, 'b'},
  };
  const defined ops[] = {
      {MPI_SUM, 0, "iufc"}, {MPI_PROD, 1, "iufc"}, {MPI_MIN, 2, "iuf"},  {MPI_MAX, 3, "iuf"},
      {MPI_BAND, 4, "iub"}, {MPI_BOR, 5, "iub"},   {MPI_BXOR, 6, "iub"},
  };
  int form = 0, ranks;
  MPI_Comm_size(comm, &ranks);
  const int every = ranks > 3 ? 5 : 1;  // many ranks share few cores, and what differs is seen with three
  for (size_t t = 0; t < sizeof types / sizeof *types; ++t) {
    for (size_t o = 0; o < sizeof ops / sizeof *ops; ++o) {
      if (!strchr(ops[o].kinds, types[t].kind)) continue;
      if (++form % every == 0) test_one(types[t], ops[o], form % FORMS, comm);
    }
  }
  test_chars(comm);
  test_sizes(comm);
  test_other_ops(comm);
}

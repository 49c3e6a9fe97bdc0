// The functions in which each rank, or the root, has a block for every other: gather, scatter and all-to-all.
// Each block has the values of its two ends, whatever its length and datatype.
#include "suite.h"

#define MOST_RANKS 16
#define MOST 8192
#define GAP -7

typedef struct {
  int count[MOST_RANKS], offset[MOST_RANKS];
} blocks;

static int ranks, rank;

static int element(int from, int to, int i) {
  return from * 1000003 + to * 10007 + i * 17 + 5;
}

static void clear(int* memory) {
  for (int i = 0; i < MOST; ++i) memory[i] = GAP;
}

// Elements of a block, of which `step` is 3 if its datatype takes every third integer.
static void put(int* at, int from, int to, int count, int step) {
  for (int i = 0; i < count; ++i) at[i * step] = element(from, to, i);
}

static void check(const int* at, int from, int to, int count, int step) {
  for (int i = 0; i < count; ++i) CHECK(at[i * step] == element(from, to, i));
}

// And nothing else was written.
static void check_written(const int* memory, int count) {
  int written = 0;
  for (int i = 0; i < MOST; ++i) written += memory[i] != GAP;
  CHECK(written == count);
}

static int sum(const blocks* b) {
  int total = 0;
  for (int i = 0; i < ranks; ++i) total += b->count[i];
  return total;
}

// How a rank passes integers: as such, or as elements of a datatype of its own.
typedef struct {
  MPI_Datatype type;
  int ints, step;  // an element's, and from one to the next in memory
} side;

// What ranks pass that are not the root.
static const blocks senseless = {{-1, -2, -3}, {-9, -9, -9}};

static void test_gather(int form, int ints, int root, side own, side all, MPI_Comm comm) {
  static int in[MOST], out[MOST];
  const int at_root = rank == root, count = ints / own.ints;
  clear(in);
  put(in, rank, root, ints, own.step);
  for (int in_place = 0; in_place < 2; ++in_place) {
    clear(out);
    int* const mine = out + rank * ints * all.step;
    if (in_place && at_root) put(mine, rank, root, ints, all.step);
    call_gather(form, in_place && at_root ? MPI_IN_PLACE : in, in_place && at_root ? -1 : count,
                in_place && at_root ? MPI_DATATYPE_NULL : own.type, at_root ? out : NULL,
                at_root ? ints / all.ints : -1, at_root ? all.type : MPI_DATATYPE_NULL, root, comm);
    for (int i = 0; at_root && i < ranks; ++i) check(out + i * ints * all.step, i, root, ints, all.step);
    check_written(out, at_root ? ranks * ints : 0);
  }
}

static void test_scatter(int form, int ints, int root, side own, side all, MPI_Comm comm) {
  static int in[MOST], out[MOST];
  const int at_root = rank == root, count = ints / own.ints;
  clear(in);
  for (int i = 0; i < ranks; ++i) put(in + i * ints * all.step, root, i, ints, all.step);
  for (int in_place = 0; in_place < 2; ++in_place) {
    clear(out);
    call_scatter(form, at_root ? in : NULL, at_root ? ints / all.ints : -1,
                 at_root ? all.type : MPI_DATATYPE_NULL, in_place && at_root ? MPI_IN_PLACE : out,
                 in_place && at_root ? -1 : count, in_place && at_root ? MPI_DATATYPE_NULL : own.type, root,
                 comm);
    if (!in_place || !at_root) check(out, root, rank, ints, own.step);
    check_written(out, in_place && at_root ? 0 : ints);
    for (int i = 0; i < ranks; ++i) check(in + i * ints * all.step, root, i, ints, all.step);
  }
}

static void test_alltoall(int form, int ints, side sent, side received, MPI_Comm comm) {
  static int in[MOST], out[MOST];
  const int count = ints / sent.ints;
  clear(in);
  clear(out);
  for (int i = 0; i < ranks; ++i) put(in + i * ints * sent.step, rank, i, ints, sent.step);
  call_alltoall(form, in, count, sent.type, out, ints / received.ints, received.type, comm);
  for (int i = 0; i < ranks; ++i) check(out + i * ints * received.step, i, rank, ints, received.step);
  check_written(out, ranks * ints);
  call_alltoall(form, MPI_IN_PLACE, -1, MPI_DATATYPE_NULL, in, count, sent.type, comm);
  for (int i = 0; i < ranks; ++i) check(in + i * ints * sent.step, i, rank, ints, sent.step);
  check_written(in, ranks * ints);
}

static void test_gatherv(int form, const blocks* b, int root, MPI_Comm comm) {
  static int in[MOST], out[MOST];
  const int at_root = rank == root;
  const blocks* const known = at_root ? b : &senseless;
  clear(in);
  put(in, rank, root, b->count[rank], 1);
  for (int in_place = 0; in_place < 2; ++in_place) {
    clear(out);
    if (in_place && at_root) put(out + b->offset[rank], rank, root, b->count[rank], 1);
    call_gatherv(form, in_place && at_root ? MPI_IN_PLACE : in, b->count[rank], MPI_INT, at_root ? out : NULL,
                 at_root || in_place ? known->count : NULL, at_root || in_place ? known->offset : NULL,
                 at_root ? MPI_INT : MPI_DATATYPE_NULL, root, comm);
    for (int i = 0; at_root && i < ranks; ++i) check(out + b->offset[i], i, root, b->count[i], 1);
    check_written(out, at_root ? sum(b) : 0);
  }
}

static void test_scatterv(int form, const blocks* b, int root, MPI_Comm comm) {
  static int in[MOST], out[MOST];
  const int at_root = rank == root;
  const blocks* const known = at_root ? b : &senseless;
  clear(in);
  for (int i = 0; i < ranks; ++i) put(in + b->offset[i], root, i, b->count[i], 1);
  for (int in_place = 0; in_place < 2; ++in_place) {
    clear(out);
    call_scatterv(form, at_root ? in : NULL, at_root || in_place ? known->count : NULL,
                  at_root || in_place ? known->offset : NULL, at_root ? MPI_INT : MPI_DATATYPE_NULL,
                  in_place && at_root ? MPI_IN_PLACE : out, b->count[rank], MPI_INT, root, comm);
    if (!in_place || !at_root) check(out, root, rank, b->count[rank], 1);
    check_written(out, in_place && at_root ? 0 : b->count[rank]);
  }
}

static blocks placed(const int* count, int backwards, int gap) {
  blocks b;
  int end = gap;
  for (int k = 0; k < ranks; ++k) {
    const int i = backwards ? ranks - 1 - k : k;
    b.count[i] = count[i];
    b.offset[i] = end;
    end += count[i] + gap;
  }
  return b;
}

// Lengths that differ for each pair, some of them zero.
static int length(int from, int to, int unit) {
  return (from * 3 + to * 5) % 4 * unit;
}

static void test_alltoallv(int form, int unit, int backwards, int gap, MPI_Comm comm) {
  static int in[MOST], out[MOST];
  int sent[MOST_RANKS] = {0}, received[MOST_RANKS] = {0}, swapped[MOST_RANKS] = {0};
  for (int i = 0; i < ranks; ++i) {
    sent[i] = length(rank, i, unit);
    received[i] = length(i, rank, unit);
    swapped[i] = length(rank < i ? rank : i, rank < i ? i : rank, unit);
  }
  const blocks s = placed(sent, 0, gap), r = placed(received, backwards, gap),
               both = placed(swapped, backwards, gap);
  clear(in);
  clear(out);
  for (int i = 0; i < ranks; ++i) put(in + s.offset[i], rank, i, s.count[i], 1);
  call_alltoallv(form, in, s.count, s.offset, MPI_INT, out, r.count, r.offset, MPI_INT, comm);
  for (int i = 0; i < ranks; ++i) check(out + r.offset[i], i, rank, r.count[i], 1);
  check_written(out, sum(&r));
  clear(out);
  for (int i = 0; i < ranks; ++i) put(out + both.offset[i], rank, i, both.count[i], 1);
  call_alltoallv(form, MPI_IN_PLACE, NULL, NULL, MPI_DATATYPE_NULL, out, both.count, both.offset, MPI_INT,
                 comm);
  for (int i = 0; i < ranks; ++i) check(out + both.offset[i], i, rank, both.count[i], 1);
  check_written(out, sum(&both));
}

// A datatype of their own on some ranks.
static void test_typed_blocks(int form, side own, MPI_Comm comm) {
  static int in[MOST], out[MOST];
  const side plain = {MPI_INT, 1, 1};
  const side mine = rank % 2 == 0 ? own : plain;
  const int root = form % ranks, elements = 2;
  blocks b;
  for (int i = 0; i < ranks; ++i) {
    b.count[i] = elements * own.ints / mine.ints;
    b.offset[i] = i * b.count[i];
  }
  const int ints = elements * own.ints, count = ints / mine.ints;
  clear(in);
  clear(out);
  for (int i = 0; i < ranks; ++i) put(in + i * ints * mine.step, rank, i, ints, mine.step);
  call_alltoallv(form, in, b.count, b.offset, mine.type, out, b.count, b.offset, mine.type, comm);
  for (int i = 0; i < ranks; ++i) check(out + i * ints * mine.step, i, rank, ints, mine.step);
  check_written(out, ranks * ints);
  clear(out);
  put(in, rank, root, ints, mine.step);
  call_gatherv(form, in, count, mine.type, out, b.count, b.offset, mine.type, root, comm);
  for (int i = 0; rank == root && i < ranks; ++i) {
    check(out + i * ints * mine.step, i, root, ints, mine.step);
  }
  check_written(out, rank == root ? ranks * ints : 0);
  clear(out);
  for (int i = 0; i < ranks; ++i) put(in + i * ints * mine.step, root, i, ints, mine.step);
  call_scatterv(form, in, b.count, b.offset, mine.type, out, count, mine.type, root, comm);
  check(out, root, rank, ints, mine.step);
  check_written(out, ints);
}

// Blocks that travel in several pieces.
static void test_long(int form, MPI_Comm comm) {
  enum { ints = 300001 };
  int* in = malloc(sizeof(int) * ints * (size_t)ranks);
  int* out = malloc(sizeof(int) * ints * (size_t)ranks);
  int counts[MOST_RANKS], offsets[MOST_RANKS], shorter[MOST_RANKS];
  for (int i = 0; i < ranks; ++i) {
    counts[i] = ints / (rank + i + 1);
    shorter[i] = ints / (i + 1);
    offsets[i] = i * ints;
    put(in + (size_t)i * ints, rank, i, ints, 1);
  }
  memset(out, 0, sizeof(int) * ints * (size_t)ranks);
  call_alltoall(form, in, ints, MPI_INT, out, ints, MPI_INT, comm);
  for (int i = 0; i < ranks; ++i) check(out + offsets[i], i, rank, ints, 1);
  memset(out, 0, sizeof(int) * ints * (size_t)ranks);
  call_alltoallv(form, in, counts, offsets, MPI_INT, out, counts, offsets, MPI_INT, comm);
  for (int i = 0; i < ranks; ++i) check(out + offsets[i], i, rank, counts[i], 1);
  memset(out, 0, sizeof(int) * ints * (size_t)ranks);
  call_gatherv(form, in, shorter[rank], MPI_INT, out, shorter, offsets, MPI_INT, 0, comm);
  for (int i = 0; rank == 0 && i < ranks; ++i) check(out + offsets[i], i, 0, shorter[i], 1);
  for (int i = 0; i < ranks; ++i) put(in + offsets[i], 1, i, ints, 1);
  call_scatterv(form, in, shorter, offsets, MPI_INT, out, shorter[rank], MPI_INT, 1, comm);
  check(out, 1, rank, shorter[rank], 1);
  free(in);
  free(out);
}

void test_blocks(MPI_Comm comm) {
  MPI_Datatype ten, one_of_three, every_third;
  MPI_Comm_size(comm, &ranks);
  MPI_Comm_rank(comm, &rank);
  MPI_Type_contiguous(10, MPI_INT, &ten);
  MPI_Type_commit(&ten);
  MPI_Type_vector(10, 1, 3, MPI_INT, &one_of_three);
  MPI_Type_create_resized(one_of_three, 0, 30 * sizeof(int), &every_third);
  MPI_Type_commit(&every_third);
  const side plain = {MPI_INT, 1, 1}, packed = {ten, 10, 1}, spread = {every_third, 10, 3};
  const side sides[] = {plain, packed, spread};
  const int sizes[] = {1, 40, 100};
  int uneven[MOST_RANKS] = {0}, equal[MOST_RANKS] = {0}, zero[MOST_RANKS] = {0};
  for (int i = 0; i < ranks; ++i) {
    uneven[i] = i == 1 ? 0 : 20 * i + 3;
    equal[i] = 30;
  }
  for (int form = 0; form < FORMS; ++form) {
    const int root = form % ranks;
    for (int s = 0; s < 3; ++s) {
      test_gather(form, sizes[s], root, plain, plain, comm);
      test_scatter(form, sizes[s], root, plain, plain, comm);
      test_alltoall(form, sizes[s], plain, plain, comm);
      const side one = sides[(s + rank) % 3], other = sides[(s + rank + 1) % 3];
      test_gather(form, 20, root, one, other, comm);
      test_scatter(form, 20, root, one, other, comm);
      test_alltoall(form, 20, one, other, comm);
    }
    for (int backwards = 0; backwards < 2; ++backwards) {
      for (int gap = 0; gap < 6; gap += 5) {
        const blocks b[] = {placed(uneven, backwards, gap), placed(equal, backwards, gap),
                            placed(zero, backwards, gap)};
        for (int k = 0; k < 3; ++k) test_gatherv(form, &b[k], root, comm);
        for (int k = 0; k < 3; ++k) test_scatterv(form, &b[k], root, comm);
        test_alltoallv(form, 20, backwards, gap, comm);
        test_alltoallv(form, 0, backwards, gap, comm);
      }
    }
    test_typed_blocks(form, packed, comm);
    test_typed_blocks(form, spread, comm);
    test_long(form, comm);
    test_gather(form, 0, root, plain, plain, comm);
    test_scatter(form, 0, root, plain, plain, comm);
    test_alltoall(form, 0, plain, plain, comm);
  }
  MPI_Type_free(&ten);
  MPI_Type_free(&one_of_three);
  MPI_Type_free(&every_third);
}

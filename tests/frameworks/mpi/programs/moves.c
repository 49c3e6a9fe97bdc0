// The functions that move bytes, with datatypes of the library and of the program's own.
#include "suite.h"

#define MOST 4096

static int element(int rank, int i) {
  return rank * 1000003 + i * 17 + 5;
}

static void fill(int* memory, int rank, int count) {
  for (int i = 0; i < count; ++i) memory[i] = element(rank, i);
}

static void check(const int* memory, int rank, int count) {
  for (int i = 0; i < count; ++i) CHECK(memory[i] == element(rank, i));
}

static void test_allgatherv(int form, const int* counts, const int* offsets, MPI_Comm comm) {
  static int out[MOST], in[MOST];
  int ranks, rank;
  MPI_Comm_size(comm, &ranks);
  MPI_Comm_rank(comm, &rank);
  fill(in, rank, counts[rank]);
  for (int i = 0; i < MOST; ++i) out[i] = -7;
  call_allgatherv(form, in, counts[rank], MPI_INT, out, counts, offsets, MPI_INT, comm);
  int sum = 0, total = 0;
  for (int i = 0; i < ranks; ++i) {
    check(out + offsets[i], i, counts[i]);
    total += counts[i];
  }
  for (int i = 0; i < MOST; ++i) sum += out[i] != -7;
  CHECK(sum == total);  // and nothing between the blocks was written
  for (int i = 0; i < MOST; ++i) out[i] = -7;
  fill(out + offsets[rank], rank, counts[rank]);
  call_allgatherv(form, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, out, counts, offsets, MPI_INT, comm);
  for (int i = 0; i < ranks; ++i) check(out + offsets[i], i, counts[i]);
}

void test_moves(MPI_Comm comm) {
  const int sizes[] = {1, 40, 500};
  static int out[MOST], in[MOST];
  int ranks, rank, counts[16], equal[16], even[16], behind[16], apart[16], mixed[16];
  MPI_Comm_size(comm, &ranks);
  MPI_Comm_rank(comm, &rank);
  for (int i = 0; i < ranks; ++i) {
    counts[i] = i == 1 ? 0 : 20 * i + 3;
    behind[i] = i == 0 ? 0 : behind[i - 1] + counts[i - 1];
    equal[i] = 30;
    even[i] = i * 30;
    apart[i] = i * 150 + 5;
    mixed[i] = (ranks - 1 - i) * 130 + 2;
  }
  for (int form = 0; form < FORMS; ++form) {
    for (int s = 0; s < 3; ++s) {
      const int root = (form + s) % ranks;
      memset(out, 0, sizeof out);
      if (rank == root) fill(out, root, sizes[s]);
      call_bcast(form, out, sizes[s], MPI_INT, root, comm);
      check(out, root, sizes[s]);
      fill(in, rank, sizes[s]);
      memset(out, 0, sizeof out);
      call_allgather(form, in, sizes[s], MPI_INT, out, sizes[s], MPI_INT, comm);
      for (int i = 0; i < ranks; ++i) check(out + i * sizes[s], i, sizes[s]);
      memset(out, 0, sizeof out);
      fill(out + rank * sizes[s], rank, sizes[s]);
      call_allgather(form, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, out, sizes[s], MPI_INT, comm);
      for (int i = 0; i < ranks; ++i) check(out + i * sizes[s], i, sizes[s]);
    }
    test_allgatherv(form, equal, even, comm);
    test_allgatherv(form, equal, apart, comm);
    test_allgatherv(form, counts, behind, comm);
    test_allgatherv(form, counts, apart, comm);
    test_allgatherv(form, counts, mixed, comm);
    call_barrier(form, comm);
    call_bcast(form, NULL, 0, MPI_INT, 0, comm);
  }
}

// What one rank passes as integers another may pass as a datatype of its own: only what travels must agree.
static void test_bcast_of(int form, MPI_Datatype own, int own_count, int stride, int length, MPI_Comm comm) {
  static int memory[MOST];
  int ranks, rank;
  MPI_Comm_size(comm, &ranks);
  MPI_Comm_rank(comm, &rank);
  for (int root = 0; root < 2; ++root) {
    const int derived = rank % 2 == 0;
    const int step = derived ? stride : 1;
    for (int i = 0; i < MOST; ++i) memory[i] = rank == root && i % step == 0 ? element(root, i / step) : -7;
    if (derived) {
      call_bcast(form, memory, own_count, own, root, comm);
    } else {
      call_bcast(form, memory, length, MPI_INT, root, comm);
    }
    for (int i = 0; i < length; ++i) CHECK(memory[i * step] == element(root, i));
    if (derived && rank != root && stride > 1) CHECK(memory[1] == -7);
  }
}

static void test_allgather_of(int form, MPI_Datatype own, int own_count, int stride, int length,
                              MPI_Comm comm) {
  static int in[MOST], out[MOST];
  int ranks, rank;
  MPI_Comm_size(comm, &ranks);
  MPI_Comm_rank(comm, &rank);
  const int derived = rank % 2 == 0;
  for (int i = 0; i < MOST; ++i) {
    in[i] = i % stride == 0 ? element(rank, i / stride) : -7;
    out[i] = -7;
  }
  // Sent as it lies there, received as plain integers on some ranks, as it is sent on the others.
  if (derived) {
    call_allgather(form, in, own_count, own, out, own_count, own, comm);
  } else {
    call_allgather(form, in, own_count, own, out, length, MPI_INT, comm);
  }
  for (int from = 0; from < ranks; ++from) {
    for (int i = 0; i < length; ++i) {
      const int at = from * length + i;
      CHECK(out[derived ? at * stride : at] == element(from, i));
    }
  }
}

void test_datatypes(MPI_Comm comm) {
  MPI_Datatype ten, every_third, one_of_three, pair_type;
  MPI_Type_contiguous(10, MPI_INT, &ten);
  MPI_Type_commit(&ten);
  MPI_Type_vector(10, 1, 3, MPI_INT, &one_of_three);
  MPI_Type_create_resized(one_of_three, 0, 30 * sizeof(int), &every_third);
  MPI_Type_commit(&every_third);
  for (int form = 0; form < FORMS; ++form) {
    test_bcast_of(form, ten, 4, 1, 40, comm);
    test_bcast_of(form, every_third, 4, 3, 40, comm);
    test_allgather_of(form, ten, 4, 1, 40, comm);
    test_allgather_of(form, every_third, 4, 3, 40, comm);
  }
  // A pair of the library's has a gap. And a datatype may go before the call that uses it is over.
  struct {
    double value;
    int where;
  } pair = {1.5, 7};
  int rank;
  MPI_Comm_rank(comm, &rank);
  if (rank != 0) pair.value = pair.where = 0;
  MPI_Bcast(&pair, 1, MPI_DOUBLE_INT, 0, comm);
  CHECK(pair.value == 1.5 && pair.where == 7);
  MPI_Type_dup(every_third, &pair_type);
  int many[30];
  for (int i = 0; i < 30; ++i) many[i] = rank == 0 ? i : -1;
  MPI_Request request;
  MPI_Ibcast(many, 1, pair_type, 0, comm, &request);
  MPI_Type_free(&pair_type);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  for (int i = 0; i < 10; ++i) CHECK(many[3 * i] == 3 * i);
  MPI_Type_free(&ten);
  MPI_Type_free(&one_of_three);
  MPI_Type_free(&every_third);
}

// Times all-reduce algorithms that are written with MPI_Isend and MPI_Irecv, float32 sum in place, by the
// rules of protocol.h. They show what a transport over MPI's messages can achieve. Compiled with each
// library's mpicc, and started by its mpirun. --algorithm is ring (the default), doubling (for powers of two)
// or library (MPI_Allreduce).
#define _GNU_SOURCE
#include "mpi_world.h"

typedef struct {
  int rank, ranks;
  float* scratch;  // a buffer of the same length
} ring_context;

static void add(float* restrict to, const float* restrict from, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] += from[i];
}

static void exchange(const float* out, size_t out_count, int to, float* in, size_t in_count, int from) {
  MPI_Request requests[2];
  MPI_Irecv(in, (int)in_count, MPI_FLOAT, from, 0, MPI_COMM_WORLD, &requests[0]);
  MPI_Isend(out, (int)out_count, MPI_FLOAT, to, 0, MPI_COMM_WORLD, &requests[1]);
  MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
}

// Sends in pieces, so that one is added while the next is on its way. This helps with large buffers.
#define PIECE (64u << 10)  // elements

static void exchange_and_add(const float* out, size_t out_count, int to, float* scratch, float* sum,
                             size_t in_count, int from) {
  enum { most = 64 };
  MPI_Request receives[most], sends[most];
  const size_t longest = out_count > in_count ? out_count : in_count;
  const size_t piece = longest / PIECE >= most ? (longest + most - 1) / most : PIECE;
  int receiving = 0, sending = 0;
  for (size_t at = 0; at < in_count; at += piece) {
    const size_t count = in_count - at < piece ? in_count - at : piece;
    MPI_Irecv(scratch + at, (int)count, MPI_FLOAT, from, 0, MPI_COMM_WORLD, &receives[receiving++]);
  }
  for (size_t at = 0; at < out_count; at += piece) {
    const size_t count = out_count - at < piece ? out_count - at : piece;
    MPI_Isend(out + at, (int)count, MPI_FLOAT, to, 0, MPI_COMM_WORLD, &sends[sending++]);
  }
  for (int k = 0; k < receiving; ++k) {
    const size_t at = (size_t)k * piece, count = in_count - at < piece ? in_count - at : piece;
    MPI_Wait(&receives[k], MPI_STATUS_IGNORE);
    add(sum + at, scratch + at, count);
  }
  MPI_Waitall(sending, sends, MPI_STATUSES_IGNORE);
}

static void ring(void* context, float* buffer, float* result, size_t count) {
  (void)result;
  const ring_context* c = context;
  const int n = c->ranks, right = (c->rank + 1) % n, left = (c->rank + n - 1) % n;
#define BEGIN(chunk) (count * (size_t)(chunk) / (size_t)n)
#define LENGTH(chunk) (BEGIN((chunk) + 1) - BEGIN(chunk))
  for (int step = 0; step < n - 1; ++step) {
    const int out = (c->rank - step + n) % n, in = (out - 1 + n) % n;
    exchange_and_add(buffer + BEGIN(out), LENGTH(out), right, c->scratch, buffer + BEGIN(in), LENGTH(in),
                     left);
  }
  for (int step = 0; step < n - 1; ++step) {
    const int out = (c->rank + 1 - step + n) % n, in = (out - 1 + n) % n;
    exchange(buffer + BEGIN(out), LENGTH(out), right, buffer + BEGIN(in), LENGTH(in), left);
  }
}

static void doubling(void* context, float* buffer, float* result, size_t count) {
  (void)result;
  const ring_context* c = context;
  for (int distance = 1; distance < c->ranks; distance *= 2) {
    const int peer = c->rank ^ distance;
    exchange(buffer, count, peer, c->scratch, count, peer);
    add(buffer, c->scratch, count);
  }
}

static void library(void* context, float* buffer, float* result, size_t count) {
  (void)context, (void)result;
  MPI_Allreduce(MPI_IN_PLACE, buffer, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

#define LARGEST (256u << 20)  // bytes

int main(int argc, char** argv) {
  const int cores = (int)sysconf(_SC_NPROCESSORS_ONLN);  // not the affinity: mpirun may have bound this rank
  ring_context c = {0};
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &c.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &c.ranks);
  c.scratch = aligned_alloc(4096, LARGEST);
  const char* algorithm = pr_option(argc, argv, "--algorithm", "ring");
  pr_case test = {0};
  test.call = strcmp(algorithm, "ring") == 0 ? ring : strcmp(algorithm, "doubling") == 0 ? doubling : library;
  test.context = &c;
  if (c.ranks > PR_MAX_RANKS || c.scratch == NULL) MPI_Abort(MPI_COMM_WORLD, 2);
  if (test.call == doubling && (c.ranks & (c.ranks - 1)) != 0) MPI_Abort(MPI_COMM_WORLD, 2);
  const pr_world world = pr_make_world(c.rank, c.ranks, cores, map_shared(c.rank));
  pr_measure_sizes(&world, test, argc, argv, pr_option(argc, argv, "--library", algorithm));
  MPI_Finalize();
  free(c.scratch);
  return 0;
}

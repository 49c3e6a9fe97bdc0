// A rank that waits in a collective must let MPI go on with what it has begun before, or its partner never
// comes to the collective.
#include <pthread.h>

#include "suite.h"

#define LONG (1 << 20)  // elements: a message that waits for its receiver

static double* memory[2];

static void test_message(int from, int to, MPI_Comm comm) {
  int ranks, rank;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Comm_size(comm, &ranks);
  MPI_Comm_rank(comm, &rank);
  for (int i = 0; i < LONG; ++i) memory[0][i] = rank == from ? i : -1;
  if (rank == from) MPI_Isend(memory[0], LONG, MPI_DOUBLE, to, 1, comm, &request);
  if (rank == to) MPI_Recv(memory[0], LONG, MPI_DOUBLE, from, 1, comm, MPI_STATUS_IGNORE);
  if (rank == to) CHECK(memory[0][LONG - 1] == LONG - 1);
  int one = 1;
  MPI_Allreduce(MPI_IN_PLACE, &one, 1, MPI_INT, MPI_SUM, comm);
  CHECK(one == ranks);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
}

// The library's own collective, begun before and waited for after one of ours.
static void test_around(MPI_Comm comm) {
  int ranks, rank;
  MPI_Request request;
  MPI_Comm_size(comm, &ranks);
  MPI_Comm_rank(comm, &rank);
  for (int i = 0; i < LONG / 8; ++i) memory[0][i] = 1;
  PMPI_Ialltoall(memory[0], LONG / 8 / ranks, MPI_DOUBLE, memory[1], LONG / 8 / ranks, MPI_DOUBLE, comm,
                 &request);
  if (rank == 1) MPI_Wait(&request, MPI_STATUS_IGNORE);
  MPI_Barrier(comm);
  if (rank != 1) MPI_Wait(&request, MPI_STATUS_IGNORE);
  CHECK(memory[1][0] == 1);
}

// One-sided access to a rank that sits in a collective.
static void test_window(MPI_Comm comm) {
  int rank, got = -1, value = 5;
  MPI_Win window;
  MPI_Comm_rank(comm, &rank);
  MPI_Win_create(&value, sizeof value, sizeof value, MPI_INFO_NULL, comm, &window);
  if (rank == 1) {
    MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
    MPI_Get(&got, 1, MPI_INT, 0, 0, 1, MPI_INT, window);
    MPI_Win_unlock(0, window);
    CHECK(got == 5);
  }
  MPI_Barrier(comm);
  MPI_Win_free(&window);
}

void test_progress(MPI_Comm comm) {
  for (int i = 0; i < 2; ++i) memory[i] = malloc(sizeof(double) * LONG);
  for (int i = 0; i < 2; ++i) {
    test_message(0, 1, comm);
    test_message(1, 0, comm);
  }
  test_around(comm);
  test_window(comm);
  for (int i = 0; i < 2; ++i) free(memory[i]);
}

// Threads with a communicator each, blocking and not.
static void* in_thread(void* of) {
  MPI_Comm comm = *(MPI_Comm*)of;
  int ranks, rank;
  MPI_Comm_size(comm, &ranks);
  MPI_Comm_rank(comm, &rank);
  for (int i = 0; i < 25; ++i) {
    MPI_Request requests[3];
    int sums[3] = {rank + i, rank + i, rank + i}, now = rank - i;
    for (int k = 0; k < 3; ++k) {
      MPI_Iallreduce(MPI_IN_PLACE, &sums[k], 1, MPI_INT, MPI_SUM, comm, &requests[k]);
      if (k == 1) MPI_Allreduce(MPI_IN_PLACE, &now, 1, MPI_INT, MPI_MAX, comm);
    }
    CHECK(now == ranks - 1 - i);
    MPI_Waitall(3, requests, MPI_STATUSES_IGNORE);
    for (int k = 0; k < 3; ++k) CHECK(sums[k] == ranks * (ranks - 1) / 2 + ranks * i);
  }
  return NULL;
}

void test_threads(MPI_Comm comm) {
  pthread_t threads[3];
  MPI_Comm comms[3];
  for (int i = 0; i < 3; ++i) MPI_Comm_dup(comm, &comms[i]);
  if (!suite_threads) {
    in_thread(&comms[0]);
  } else {
    for (int i = 0; i < 3; ++i) pthread_create(&threads[i], NULL, in_thread, &comms[i]);
    for (int i = 0; i < 3; ++i) pthread_join(threads[i], NULL);
  }
  MPI_Comm_free(&comms[0]);  // the others are left to MPI_Finalize
}

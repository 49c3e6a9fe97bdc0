// What the parts of the test program have in common. Each part checks its results itself; what is wrong ends
// the program.
#pragma once

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                             \
  do {                                                                                               \
    if (!(condition)) {                                                                              \
      fprintf(stderr, "%s:%d: rank %d: %s is not so\n", __FILE__, __LINE__, suite_rank, #condition); \
      MPI_Abort(MPI_COMM_WORLD, 3);                                                                  \
    }                                                                                                \
  } while (0)

extern int suite_rank;
extern int suite_threads;  // any thread may call MPI
extern int suite_served;   // the interposer is there

// A function's forms; those that the library lacks are taken as its others.
enum { BLOCKING, NONBLOCKING, LARGE, LARGE_NONBLOCKING, FORMS };

void call_allreduce(int form, const void* send, void* receive, int count, MPI_Datatype type, MPI_Op op,
                    MPI_Comm comm);
void call_reduce(int form, const void* send, void* receive, int count, MPI_Datatype type, MPI_Op op, int root,
                 MPI_Comm comm);
void call_scan(int form, const void* send, void* receive, int count, MPI_Datatype type, MPI_Op op,
               MPI_Comm comm);
void call_exscan(int form, const void* send, void* receive, int count, MPI_Datatype type, MPI_Op op,
                 MPI_Comm comm);
void call_reduce_scatter(int form, const void* send, void* receive, const int* counts, MPI_Datatype type,
                         MPI_Op op, MPI_Comm comm);
void call_reduce_scatter_block(int form, const void* send, void* receive, int count, MPI_Datatype type,
                               MPI_Op op, MPI_Comm comm);
void call_allgather(int form, const void* send, int send_count, MPI_Datatype send_type, void* receive,
                    int count, MPI_Datatype type, MPI_Comm comm);
void call_allgatherv(int form, const void* send, int send_count, MPI_Datatype send_type, void* receive,
                     const int* counts, const int* offsets, MPI_Datatype type, MPI_Comm comm);
void call_gather(int form, const void* send, int send_count, MPI_Datatype send_type, void* receive, int count,
                 MPI_Datatype type, int root, MPI_Comm comm);
void call_scatter(int form, const void* send, int send_count, MPI_Datatype send_type, void* receive,
                  int count, MPI_Datatype type, int root, MPI_Comm comm);
void call_alltoall(int form, const void* send, int send_count, MPI_Datatype send_type, void* receive,
                   int count, MPI_Datatype type, MPI_Comm comm);
void call_gatherv(int form, const void* send, int send_count, MPI_Datatype send_type, void* receive,
                  const int* counts, const int* offsets, MPI_Datatype type, int root, MPI_Comm comm);
void call_scatterv(int form, const void* send, const int* counts, const int* offsets, MPI_Datatype send_type,
                   void* receive, int count, MPI_Datatype type, int root, MPI_Comm comm);
void call_alltoallv(int form, const void* send, const int* send_counts, const int* send_offsets,
                    MPI_Datatype send_type, void* receive, const int* counts, const int* offsets,
                    MPI_Datatype type, MPI_Comm comm);
void call_bcast(int form, void* buffer, int count, MPI_Datatype type, int root, MPI_Comm comm);
void call_barrier(int form, MPI_Comm comm);

void test_reductions(MPI_Comm comm);
void test_moves(MPI_Comm comm);
void test_datatypes(MPI_Comm comm);
void test_blocks(MPI_Comm comm);
void test_communicators(MPI_Comm comm);
void test_errors(MPI_Comm comm);
void test_progress(MPI_Comm comm);
void test_threads(MPI_Comm comm);

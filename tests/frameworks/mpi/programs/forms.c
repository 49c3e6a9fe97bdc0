// Each function by the form that is wanted.
#include "suite.h"

#define MOST_RANKS 64

#if MPI_VERSION >= 4
#define LARGE_OR(large, other) large
#else
#define LARGE_OR(large, other) other
#endif

// The arguments of the four forms differ in their counts and the request.
#define BY_FORM(blocking, nonblocking, large, large_nonblocking)                    \
  do {                                                                              \
    MPI_Request request = MPI_REQUEST_NULL;                                         \
    int code = MPI_SUCCESS;                                                         \
    if (form == BLOCKING) code = blocking;                                          \
    if (form == NONBLOCKING) code = nonblocking;                                    \
    if (form == LARGE) code = LARGE_OR(large, blocking);                            \
    if (form == LARGE_NONBLOCKING) code = LARGE_OR(large_nonblocking, nonblocking); \
    CHECK(code == MPI_SUCCESS);                                                     \
    CHECK(MPI_Wait(&request, MPI_STATUS_IGNORE) == MPI_SUCCESS);                    \
  } while (0)

void call_allreduce(int form, const void* send, void* receive, int count, MPI_Datatype type, MPI_Op op,
                    MPI_Comm comm) {
  BY_FORM(MPI_Allreduce(send, receive, count, type, op, comm),
          MPI_Iallreduce(send, receive, count, type, op, comm, &request),
          MPI_Allreduce_c(send, receive, count, type, op, comm),
          MPI_Iallreduce_c(send, receive, count, type, op, comm, &request));
}

void call_reduce(int form, const void* send, void* receive, int count, MPI_Datatype type, MPI_Op op, int root,
                 MPI_Comm comm) {
  BY_FORM(MPI_Reduce(send, receive, count, type, op, root, comm),
          MPI_Ireduce(send, receive, count, type, op, root, comm, &request),
          MPI_Reduce_c(send, receive, count, type, op, root, comm),
          MPI_Ireduce_c(send, receive, count, type, op, root, comm, &request));
}

void call_reduce_scatter(int form, const void* send, void* receive, const int* counts, MPI_Datatype type,
                         MPI_Op op, MPI_Comm comm) {
  MPI_Count large[MOST_RANKS];
  int size;
  MPI_Comm_size(comm, &size);
  for (int i = 0; i < size; ++i) large[i] = counts[i];
  BY_FORM(MPI_Reduce_scatter(send, receive, counts, type, op, comm),
          MPI_Ireduce_scatter(send, receive, counts, type, op, comm, &request),
          MPI_Reduce_scatter_c(send, receive, large, type, op, comm),
          MPI_Ireduce_scatter_c(send, receive, large, type, op, comm, &request));
  (void)large;
}

void call_reduce_scatter_block(int form, const void* send, void* receive, int count, MPI_Datatype type,
                               MPI_Op op, MPI_Comm comm) {
  BY_FORM(MPI_Reduce_scatter_block(send, receive, count, type, op, comm),
          MPI_Ireduce_scatter_block(send, receive, count, type, op, comm, &request),
          MPI_Reduce_scatter_block_c(send, receive, count, type, op, comm),
          MPI_Ireduce_scatter_block_c(send, receive, count, type, op, comm, &request));
}

void call_allgather(int form, const void* send, int send_count, MPI_Datatype send_type, void* receive,
                    int count, MPI_Datatype type, MPI_Comm comm) {
  BY_FORM(MPI_Allgather(send, send_count, send_type, receive, count, type, comm),
          MPI_Iallgather(send, send_count, send_type, receive, count, type, comm, &request),
          MPI_Allgather_c(send, send_count, send_type, receive, count, type, comm),
          MPI_Iallgather_c(send, send_count, send_type, receive, count, type, comm, &request));
}

void call_allgatherv(int form, const void* send, int send_count, MPI_Datatype send_type, void* receive,
                     const int* counts, const int* offsets, MPI_Datatype type, MPI_Comm comm) {
  MPI_Count large_counts[MOST_RANKS];
  MPI_Aint large_offsets[MOST_RANKS];
  int size;
  MPI_Comm_size(comm, &size);
  for (int i = 0; i < size; ++i) {
    large_counts[i] = counts[i];
    large_offsets[i] = offsets[i];
  }
  BY_FORM(MPI_Allgatherv(send, send_count, send_type, receive, counts, offsets, type, comm),
          MPI_Iallgatherv(send, send_count, send_type, receive, counts, offsets, type, comm, &request),
          MPI_Allgatherv_c(send, send_count, send_type, receive, large_counts, large_offsets, type, comm),
          MPI_Iallgatherv_c(send, send_count, send_type, receive, large_counts, large_offsets, type, comm,
                            &request));
  (void)large_counts;
  (void)large_offsets;
}

void call_bcast(int form, void* buffer, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  BY_FORM(MPI_Bcast(buffer, count, type, root, comm), MPI_Ibcast(buffer, count, type, root, comm, &request),
          MPI_Bcast_c(buffer, count, type, root, comm),
          MPI_Ibcast_c(buffer, count, type, root, comm, &request));
}

void call_barrier(int form, MPI_Comm comm) {
  BY_FORM(MPI_Barrier(comm), MPI_Ibarrier(comm, &request), MPI_Barrier(comm), MPI_Ibarrier(comm, &request));
}

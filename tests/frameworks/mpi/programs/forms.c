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

// Counts and offsets of the forms with large counts. Only where they matter are they not null.
typedef struct {
  MPI_Count counts[MOST_RANKS];
  MPI_Aint offsets[MOST_RANKS];
} large;

static large enlarged(const int* counts, const int* offsets, MPI_Comm comm) {
  large made = {{0}, {0}};
  int size;
  MPI_Comm_size(comm, &size);
  for (int i = 0; i < size && counts; ++i) made.counts[i] = counts[i];
  for (int i = 0; i < size && offsets; ++i) made.offsets[i] = offsets[i];
  return made;
}

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

void call_scan(int form, const void* send, void* receive, int count, MPI_Datatype type, MPI_Op op,
               MPI_Comm comm) {
  BY_FORM(MPI_Scan(send, receive, count, type, op, comm),
          MPI_Iscan(send, receive, count, type, op, comm, &request),
          MPI_Scan_c(send, receive, count, type, op, comm),
          MPI_Iscan_c(send, receive, count, type, op, comm, &request));
}

void call_exscan(int form, const void* send, void* receive, int count, MPI_Datatype type, MPI_Op op,
                 MPI_Comm comm) {
  BY_FORM(MPI_Exscan(send, receive, count, type, op, comm),
          MPI_Iexscan(send, receive, count, type, op, comm, &request),
          MPI_Exscan_c(send, receive, count, type, op, comm),
          MPI_Iexscan_c(send, receive, count, type, op, comm, &request));
}

void call_reduce_scatter(int form, const void* send, void* receive, const int* counts, MPI_Datatype type,
                         MPI_Op op, MPI_Comm comm) {
  const large l = enlarged(counts, NULL, comm);
  BY_FORM(MPI_Reduce_scatter(send, receive, counts, type, op, comm),
          MPI_Ireduce_scatter(send, receive, counts, type, op, comm, &request),
          MPI_Reduce_scatter_c(send, receive, l.counts, type, op, comm),
          MPI_Ireduce_scatter_c(send, receive, l.counts, type, op, comm, &request));
  (void)l;
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
  const large l = enlarged(counts, offsets, comm);
  BY_FORM(MPI_Allgatherv(send, send_count, send_type, receive, counts, offsets, type, comm),
          MPI_Iallgatherv(send, send_count, send_type, receive, counts, offsets, type, comm, &request),
          MPI_Allgatherv_c(send, send_count, send_type, receive, l.counts, l.offsets, type, comm),
          MPI_Iallgatherv_c(send, send_count, send_type, receive, l.counts, l.offsets, type, comm, &request));
  (void)l;
}

void call_gather(int form, const void* send, int send_count, MPI_Datatype send_type, void* receive, int count,
                 MPI_Datatype type, int root, MPI_Comm comm) {
  BY_FORM(MPI_Gather(send, send_count, send_type, receive, count, type, root, comm),
          MPI_Igather(send, send_count, send_type, receive, count, type, root, comm, &request),
          MPI_Gather_c(send, send_count, send_type, receive, count, type, root, comm),
          MPI_Igather_c(send, send_count, send_type, receive, count, type, root, comm, &request));
}

void call_scatter(int form, const void* send, int send_count, MPI_Datatype send_type, void* receive,
                  int count, MPI_Datatype type, int root, MPI_Comm comm) {
  BY_FORM(MPI_Scatter(send, send_count, send_type, receive, count, type, root, comm),
          MPI_Iscatter(send, send_count, send_type, receive, count, type, root, comm, &request),
          MPI_Scatter_c(send, send_count, send_type, receive, count, type, root, comm),
          MPI_Iscatter_c(send, send_count, send_type, receive, count, type, root, comm, &request));
}

void call_alltoall(int form, const void* send, int send_count, MPI_Datatype send_type, void* receive,
                   int count, MPI_Datatype type, MPI_Comm comm) {
  BY_FORM(MPI_Alltoall(send, send_count, send_type, receive, count, type, comm),
          MPI_Ialltoall(send, send_count, send_type, receive, count, type, comm, &request),
          MPI_Alltoall_c(send, send_count, send_type, receive, count, type, comm),
          MPI_Ialltoall_c(send, send_count, send_type, receive, count, type, comm, &request));
}

void call_gatherv(int form, const void* send, int send_count, MPI_Datatype send_type, void* receive,
                  const int* counts, const int* offsets, MPI_Datatype type, int root, MPI_Comm comm) {
  const large l = enlarged(counts, offsets, comm);
  BY_FORM(
      MPI_Gatherv(send, send_count, send_type, receive, counts, offsets, type, root, comm),
      MPI_Igatherv(send, send_count, send_type, receive, counts, offsets, type, root, comm, &request),
      MPI_Gatherv_c(send, send_count, send_type, receive, l.counts, l.offsets, type, root, comm),
      MPI_Igatherv_c(send, send_count, send_type, receive, l.counts, l.offsets, type, root, comm, &request));
  (void)l;
}

void call_scatterv(int form, const void* send, const int* counts, const int* offsets, MPI_Datatype send_type,
                   void* receive, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  const large l = enlarged(counts, offsets, comm);
  BY_FORM(MPI_Scatterv(send, counts, offsets, send_type, receive, count, type, root, comm),
          MPI_Iscatterv(send, counts, offsets, send_type, receive, count, type, root, comm, &request),
          MPI_Scatterv_c(send, l.counts, l.offsets, send_type, receive, count, type, root, comm),
          MPI_Iscatterv_c(send, l.counts, l.offsets, send_type, receive, count, type, root, comm, &request));
  (void)l;
}

void call_alltoallv(int form, const void* send, const int* send_counts, const int* send_offsets,
                    MPI_Datatype send_type, void* receive, const int* counts, const int* offsets,
                    MPI_Datatype type, MPI_Comm comm) {
  const large s = enlarged(send_counts, send_offsets, comm), l = enlarged(counts, offsets, comm);
  BY_FORM(MPI_Alltoallv(send, send_counts, send_offsets, send_type, receive, counts, offsets, type, comm),
          MPI_Ialltoallv(send, send_counts, send_offsets, send_type, receive, counts, offsets, type, comm,
                         &request),
          MPI_Alltoallv_c(send, s.counts, s.offsets, send_type, receive, l.counts, l.offsets, type, comm),
          MPI_Ialltoallv_c(send, s.counts, s.offsets, send_type, receive, l.counts, l.offsets, type, comm,
                           &request));
  (void)s;
  (void)l;
}

void call_bcast(int form, void* buffer, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  BY_FORM(MPI_Bcast(buffer, count, type, root, comm), MPI_Ibcast(buffer, count, type, root, comm, &request),
          MPI_Bcast_c(buffer, count, type, root, comm),
          MPI_Ibcast_c(buffer, count, type, root, comm, &request));
}

void call_barrier(int form, MPI_Comm comm) {
  BY_FORM(MPI_Barrier(comm), MPI_Ibarrier(comm, &request), MPI_Barrier(comm), MPI_Ibarrier(comm, &request));
}

// The nonblocking functions with large counts, which came with MPI 4.
#include "mpi/interpose/serve.h"

using namespace ringreduce::mpi;

extern "C" {

[[gnu::visibility("default")]] int MPI_Iallreduce_c(const void* sendbuf, void* recvbuf, MPI_Count count,
                                                    MPI_Datatype datatype, MPI_Op op, MPI_Comm comm,
                                                    MPI_Request* request) {
  return serve(comm, large_nonblocking, Allreduce{sendbuf, recvbuf, count, datatype, op}, request,
               [&] { return PMPI_Iallreduce_c(sendbuf, recvbuf, count, datatype, op, comm, request); });
}

[[gnu::visibility("default")]] int MPI_Ireduce_c(const void* sendbuf, void* recvbuf, MPI_Count count,
                                                 MPI_Datatype datatype, MPI_Op op, int root, MPI_Comm comm,
                                                 MPI_Request* request) {
  return serve(comm, large_nonblocking, Reduce{sendbuf, recvbuf, count, datatype, op, root}, request,
               [&] { return PMPI_Ireduce_c(sendbuf, recvbuf, count, datatype, op, root, comm, request); });
}

[[gnu::visibility("default")]] int MPI_Ireduce_scatter_c(const void* sendbuf, void* recvbuf,
                                                         const MPI_Count recvcounts[], MPI_Datatype datatype,
                                                         MPI_Op op, MPI_Comm comm, MPI_Request* request) {
  return serve(
      comm, large_nonblocking, ReduceScatter{sendbuf, recvbuf, recvcounts, datatype, op}, request,
      [&] { return PMPI_Ireduce_scatter_c(sendbuf, recvbuf, recvcounts, datatype, op, comm, request); });
}

[[gnu::visibility("default")]] int MPI_Ireduce_scatter_block_c(const void* sendbuf, void* recvbuf,
                                                               MPI_Count recvcount, MPI_Datatype datatype,
                                                               MPI_Op op, MPI_Comm comm,
                                                               MPI_Request* request) {
  return serve(
      comm, large_nonblocking, ReduceScatterBlock{sendbuf, recvbuf, recvcount, datatype, op}, request,
      [&] { return PMPI_Ireduce_scatter_block_c(sendbuf, recvbuf, recvcount, datatype, op, comm, request); });
}

[[gnu::visibility("default")]] int MPI_Iallgather_c(const void* sendbuf, MPI_Count sendcount,
                                                    MPI_Datatype sendtype, void* recvbuf, MPI_Count recvcount,
                                                    MPI_Datatype recvtype, MPI_Comm comm,
                                                    MPI_Request* request) {
  return serve(comm, large_nonblocking, Allgather{sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype},
               request, [&] {
                 return PMPI_Iallgather_c(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm,
                                          request);
               });
}

[[gnu::visibility("default")]] int MPI_Iallgatherv_c(const void* sendbuf, MPI_Count sendcount,
                                                     MPI_Datatype sendtype, void* recvbuf,
                                                     const MPI_Count recvcounts[], const MPI_Aint displs[],
                                                     MPI_Datatype recvtype, MPI_Comm comm,
                                                     MPI_Request* request) {
  return serve(comm, large_nonblocking,
               Allgatherv{sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype}, request, [&] {
                 return PMPI_Iallgatherv_c(sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs,
                                           recvtype, comm, request);
               });
}

[[gnu::visibility("default")]] int MPI_Ibcast_c(void* buffer, MPI_Count count, MPI_Datatype datatype,
                                                int root, MPI_Comm comm, MPI_Request* request) {
  return serve(comm, large_nonblocking, Bcast{buffer, count, datatype, root}, request,
               [&] { return PMPI_Ibcast_c(buffer, count, datatype, root, comm, request); });
}

}  // extern "C"

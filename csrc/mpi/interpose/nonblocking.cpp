// The nonblocking functions as C programs call them.
#include "mpi/interpose/serve.h"

using namespace ringreduce::mpi;

extern "C" {

[[gnu::visibility("default")]] int MPI_Iallreduce(const void* sendbuf, void* recvbuf, int count,
                                                  MPI_Datatype datatype, MPI_Op op, MPI_Comm comm,
                                                  MPI_Request* request) {
  return serve(comm, nonblocking, Allreduce{sendbuf, recvbuf, count, datatype, op}, request,
               [&] { return PMPI_Iallreduce(sendbuf, recvbuf, count, datatype, op, comm, request); });
}

[[gnu::visibility("default")]] int MPI_Ireduce(const void* sendbuf, void* recvbuf, int count,
                                               MPI_Datatype datatype, MPI_Op op, int root, MPI_Comm comm,
                                               MPI_Request* request) {
  return serve(comm, nonblocking, Reduce{sendbuf, recvbuf, count, datatype, op, root}, request,
               [&] { return PMPI_Ireduce(sendbuf, recvbuf, count, datatype, op, root, comm, request); });
}

[[gnu::visibility("default")]] int MPI_Ireduce_scatter(const void* sendbuf, void* recvbuf,
                                                       const int recvcounts[], MPI_Datatype datatype,
                                                       MPI_Op op, MPI_Comm comm, MPI_Request* request) {
  return serve(comm, nonblocking, ReduceScatter{sendbuf, recvbuf, recvcounts, datatype, op}, request, [&] {
    return PMPI_Ireduce_scatter(sendbuf, recvbuf, recvcounts, datatype, op, comm, request);
  });
}

[[gnu::visibility("default")]] int MPI_Ireduce_scatter_block(const void* sendbuf, void* recvbuf,
                                                             int recvcount, MPI_Datatype datatype, MPI_Op op,
                                                             MPI_Comm comm, MPI_Request* request) {
  return serve(
      comm, nonblocking, ReduceScatterBlock{sendbuf, recvbuf, recvcount, datatype, op}, request,
      [&] { return PMPI_Ireduce_scatter_block(sendbuf, recvbuf, recvcount, datatype, op, comm, request); });
}

[[gnu::visibility("default")]] int MPI_Iallgather(const void* sendbuf, int sendcount, MPI_Datatype sendtype,
                                                  void* recvbuf, int recvcount, MPI_Datatype recvtype,
                                                  MPI_Comm comm, MPI_Request* request) {
  return serve(
      comm, nonblocking, Allgather{sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype}, request, [&] {
        return PMPI_Iallgather(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm, request);
      });
}

[[gnu::visibility("default")]] int MPI_Iallgatherv(const void* sendbuf, int sendcount, MPI_Datatype sendtype,
                                                   void* recvbuf, const int recvcounts[], const int displs[],
                                                   MPI_Datatype recvtype, MPI_Comm comm,
                                                   MPI_Request* request) {
  return serve(comm, nonblocking,
               Allgatherv{sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype}, request, [&] {
                 return PMPI_Iallgatherv(sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype,
                                         comm, request);
               });
}

[[gnu::visibility("default")]] int MPI_Ibcast(void* buffer, int count, MPI_Datatype datatype, int root,
                                              MPI_Comm comm, MPI_Request* request) {
  return serve(comm, nonblocking, Bcast{buffer, count, datatype, root}, request,
               [&] { return PMPI_Ibcast(buffer, count, datatype, root, comm, request); });
}

[[gnu::visibility("default")]] int MPI_Ibarrier(MPI_Comm comm, MPI_Request* request) {
  return serve(comm, nonblocking, Barrier{}, request, [&] { return PMPI_Ibarrier(comm, request); });
}

}  // extern "C"

// The blocking functions as C programs call them.
#include "mpi/interpose/serve.h"

using namespace ringreduce::mpi;

extern "C" {

[[gnu::visibility("default")]] int MPI_Allreduce(const void* sendbuf, void* recvbuf, int count,
                                                 MPI_Datatype datatype, MPI_Op op, MPI_Comm comm) {
  return serve(comm, blocking, Allreduce{sendbuf, recvbuf, count, datatype, op},
               [&] { return PMPI_Allreduce(sendbuf, recvbuf, count, datatype, op, comm); });
}

[[gnu::visibility("default")]] int MPI_Reduce(const void* sendbuf, void* recvbuf, int count,
                                              MPI_Datatype datatype, MPI_Op op, int root, MPI_Comm comm) {
  return serve(comm, blocking, Reduce{sendbuf, recvbuf, count, datatype, op, root},
               [&] { return PMPI_Reduce(sendbuf, recvbuf, count, datatype, op, root, comm); });
}

[[gnu::visibility("default")]] int MPI_Reduce_scatter(const void* sendbuf, void* recvbuf,
                                                      const int recvcounts[], MPI_Datatype datatype,
                                                      MPI_Op op, MPI_Comm comm) {
  return serve(comm, blocking, ReduceScatter{sendbuf, recvbuf, recvcounts, datatype, op},
               [&] { return PMPI_Reduce_scatter(sendbuf, recvbuf, recvcounts, datatype, op, comm); });
}

[[gnu::visibility("default")]] int MPI_Reduce_scatter_block(const void* sendbuf, void* recvbuf, int recvcount,
                                                            MPI_Datatype datatype, MPI_Op op, MPI_Comm comm) {
  return serve(comm, blocking, ReduceScatterBlock{sendbuf, recvbuf, recvcount, datatype, op},
               [&] { return PMPI_Reduce_scatter_block(sendbuf, recvbuf, recvcount, datatype, op, comm); });
}

[[gnu::visibility("default")]] int MPI_Allgather(const void* sendbuf, int sendcount, MPI_Datatype sendtype,
                                                 void* recvbuf, int recvcount, MPI_Datatype recvtype,
                                                 MPI_Comm comm) {
  return serve(comm, blocking, Allgather{sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype}, [&] {
    return PMPI_Allgather(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm);
  });
}

[[gnu::visibility("default")]] int MPI_Allgatherv(const void* sendbuf, int sendcount, MPI_Datatype sendtype,
                                                  void* recvbuf, const int recvcounts[], const int displs[],
                                                  MPI_Datatype recvtype, MPI_Comm comm) {
  return serve(
      comm, blocking, Allgatherv{sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype}, [&] {
        return PMPI_Allgatherv(sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, comm);
      });
}

[[gnu::visibility("default")]] int MPI_Bcast(void* buffer, int count, MPI_Datatype datatype, int root,
                                             MPI_Comm comm) {
  return serve(comm, blocking, Bcast{buffer, count, datatype, root},
               [&] { return PMPI_Bcast(buffer, count, datatype, root, comm); });
}

[[gnu::visibility("default")]] int MPI_Barrier(MPI_Comm comm) {
  return serve(comm, blocking, Barrier{}, [&] { return PMPI_Barrier(comm); });
}

}  // extern "C"

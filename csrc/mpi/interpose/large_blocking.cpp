// The blocking functions with large counts, which came with MPI 4.
#include "mpi/interpose/serve.h"

using namespace ringreduce::mpi;

extern "C" {

[[gnu::visibility("default")]] int MPI_Allreduce_c(const void* sendbuf, void* recvbuf, MPI_Count count,
                                                   MPI_Datatype datatype, MPI_Op op, MPI_Comm comm) {
  return serve(comm, large, Allreduce{sendbuf, recvbuf, count, datatype, op},
               [&] { return PMPI_Allreduce_c(sendbuf, recvbuf, count, datatype, op, comm); });
}

[[gnu::visibility("default")]] int MPI_Reduce_c(const void* sendbuf, void* recvbuf, MPI_Count count,
                                                MPI_Datatype datatype, MPI_Op op, int root, MPI_Comm comm) {
  return serve(comm, large, Reduce{sendbuf, recvbuf, count, datatype, op, root},
               [&] { return PMPI_Reduce_c(sendbuf, recvbuf, count, datatype, op, root, comm); });
}

[[gnu::visibility("default")]] int MPI_Reduce_scatter_c(const void* sendbuf, void* recvbuf,
                                                        const MPI_Count recvcounts[], MPI_Datatype datatype,
                                                        MPI_Op op, MPI_Comm comm) {
  return serve(comm, large, ReduceScatter{sendbuf, recvbuf, recvcounts, datatype, op},
               [&] { return PMPI_Reduce_scatter_c(sendbuf, recvbuf, recvcounts, datatype, op, comm); });
}

[[gnu::visibility("default")]] int MPI_Reduce_scatter_block_c(const void* sendbuf, void* recvbuf,
                                                              MPI_Count recvcount, MPI_Datatype datatype,
                                                              MPI_Op op, MPI_Comm comm) {
  return serve(comm, large, ReduceScatterBlock{sendbuf, recvbuf, recvcount, datatype, op},
               [&] { return PMPI_Reduce_scatter_block_c(sendbuf, recvbuf, recvcount, datatype, op, comm); });
}

[[gnu::visibility("default")]] int MPI_Allgather_c(const void* sendbuf, MPI_Count sendcount,
                                                   MPI_Datatype sendtype, void* recvbuf, MPI_Count recvcount,
                                                   MPI_Datatype recvtype, MPI_Comm comm) {
  return serve(comm, large, Allgather{sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype}, [&] {
    return PMPI_Allgather_c(sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm);
  });
}

[[gnu::visibility("default")]] int MPI_Allgatherv_c(const void* sendbuf, MPI_Count sendcount,
                                                    MPI_Datatype sendtype, void* recvbuf,
                                                    const MPI_Count recvcounts[], const MPI_Aint displs[],
                                                    MPI_Datatype recvtype, MPI_Comm comm) {
  return serve(
      comm, large, Allgatherv{sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype}, [&] {
        return PMPI_Allgatherv_c(sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, comm);
      });
}

[[gnu::visibility("default")]] int MPI_Bcast_c(void* buffer, MPI_Count count, MPI_Datatype datatype, int root,
                                               MPI_Comm comm) {
  return serve(comm, large, Bcast{buffer, count, datatype, root},
               [&] { return PMPI_Bcast_c(buffer, count, datatype, root, comm); });
}

}  // extern "C"

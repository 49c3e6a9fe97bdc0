// The functions as Fortran programs call them, where Open MPI is the library: its Fortran bindings call PMPI_
// functions, past those that C programs call. (MPICH's call the latter, so that they need nothing of their
// own.) Each of them turns handles and special addresses into those of C, and goes on as if called from C.
#include <mpi.h>

namespace {

static_assert(sizeof(MPI_Fint) == sizeof(int), "counts of Fortran would have to be copied");

}  // namespace

extern "C" {

// Fortran knows these constants as variables at special places; absent where the library has no Fortran. The
// names without an underscore are those of mpi_f08.
[[gnu::weak]] extern MPI_Fint mpi_fortran_in_place_, mpi_fortran_in_place;
[[gnu::weak]] extern MPI_Fint mpi_fortran_bottom_, mpi_fortran_bottom;

}  // extern "C"

namespace {

template <typename... Places>
bool is_one_of(const void* address, const Places*... places) {
  return address != nullptr && ((address == places) || ...);
}

void* in_c(void* buffer) {
  if (is_one_of(buffer, &mpi_fortran_in_place_, &mpi_fortran_in_place)) return MPI_IN_PLACE;
  if (is_one_of(buffer, &mpi_fortran_bottom_, &mpi_fortran_bottom)) return MPI_BOTTOM;
  return buffer;
}

void answer(int code, MPI_Fint* error) {
  if (error) *error = code;
}

void answer(int code, MPI_Request started, MPI_Fint* request, MPI_Fint* error) {
  if (code == MPI_SUCCESS) *request = PMPI_Request_c2f(started);
  answer(code, error);
}

}  // namespace

#pragma GCC visibility push(default)

extern "C" {

void mpi_allreduce_(void* sendbuf, void* recvbuf, MPI_Fint* count, MPI_Fint* datatype, MPI_Fint* op,
                    MPI_Fint* comm, MPI_Fint* error) {
  answer(MPI_Allreduce(in_c(sendbuf), in_c(recvbuf), *count, PMPI_Type_f2c(*datatype), PMPI_Op_f2c(*op),
                       PMPI_Comm_f2c(*comm)),
         error);
}

void mpi_reduce_(void* sendbuf, void* recvbuf, MPI_Fint* count, MPI_Fint* datatype, MPI_Fint* op,
                 MPI_Fint* root, MPI_Fint* comm, MPI_Fint* error) {
  answer(MPI_Reduce(in_c(sendbuf), in_c(recvbuf), *count, PMPI_Type_f2c(*datatype), PMPI_Op_f2c(*op), *root,
                    PMPI_Comm_f2c(*comm)),
         error);
}

void mpi_reduce_scatter_(void* sendbuf, void* recvbuf, MPI_Fint* counts, MPI_Fint* datatype, MPI_Fint* op,
                         MPI_Fint* comm, MPI_Fint* error) {
  answer(MPI_Reduce_scatter(in_c(sendbuf), in_c(recvbuf), counts, PMPI_Type_f2c(*datatype), PMPI_Op_f2c(*op),
                            PMPI_Comm_f2c(*comm)),
         error);
}

void mpi_reduce_scatter_block_(void* sendbuf, void* recvbuf, MPI_Fint* count, MPI_Fint* datatype,
                               MPI_Fint* op, MPI_Fint* comm, MPI_Fint* error) {
  answer(MPI_Reduce_scatter_block(in_c(sendbuf), in_c(recvbuf), *count, PMPI_Type_f2c(*datatype),
                                  PMPI_Op_f2c(*op), PMPI_Comm_f2c(*comm)),
         error);
}

void mpi_allgather_(void* sendbuf, MPI_Fint* count, MPI_Fint* datatype, void* recvbuf, MPI_Fint* recvcount,
                    MPI_Fint* recvtype, MPI_Fint* comm, MPI_Fint* error) {
  answer(MPI_Allgather(in_c(sendbuf), *count, PMPI_Type_f2c(*datatype), in_c(recvbuf), *recvcount,
                       PMPI_Type_f2c(*recvtype), PMPI_Comm_f2c(*comm)),
         error);
}

void mpi_allgatherv_(void* sendbuf, MPI_Fint* count, MPI_Fint* datatype, void* recvbuf, MPI_Fint* counts,
                     MPI_Fint* displs, MPI_Fint* recvtype, MPI_Fint* comm, MPI_Fint* error) {
  answer(MPI_Allgatherv(in_c(sendbuf), *count, PMPI_Type_f2c(*datatype), in_c(recvbuf), counts, displs,
                        PMPI_Type_f2c(*recvtype), PMPI_Comm_f2c(*comm)),
         error);
}

void mpi_bcast_(void* buffer, MPI_Fint* count, MPI_Fint* datatype, MPI_Fint* root, MPI_Fint* comm,
                MPI_Fint* error) {
  answer(MPI_Bcast(in_c(buffer), *count, PMPI_Type_f2c(*datatype), *root, PMPI_Comm_f2c(*comm)), error);
}

void mpi_barrier_(MPI_Fint* comm, MPI_Fint* error) {
  answer(MPI_Barrier(PMPI_Comm_f2c(*comm)), error);
}

void mpi_iallreduce_(void* sendbuf, void* recvbuf, MPI_Fint* count, MPI_Fint* datatype, MPI_Fint* op,
                     MPI_Fint* comm, MPI_Fint* request, MPI_Fint* error) {
  MPI_Request started = MPI_REQUEST_NULL;
  const int code = MPI_Iallreduce(in_c(sendbuf), in_c(recvbuf), *count, PMPI_Type_f2c(*datatype),
                                  PMPI_Op_f2c(*op), PMPI_Comm_f2c(*comm), &started);
  answer(code, started, request, error);
}

void mpi_ireduce_(void* sendbuf, void* recvbuf, MPI_Fint* count, MPI_Fint* datatype, MPI_Fint* op,
                  MPI_Fint* root, MPI_Fint* comm, MPI_Fint* request, MPI_Fint* error) {
  MPI_Request started = MPI_REQUEST_NULL;
  const int code = MPI_Ireduce(in_c(sendbuf), in_c(recvbuf), *count, PMPI_Type_f2c(*datatype),
                               PMPI_Op_f2c(*op), *root, PMPI_Comm_f2c(*comm), &started);
  answer(code, started, request, error);
}

void mpi_ireduce_scatter_(void* sendbuf, void* recvbuf, MPI_Fint* counts, MPI_Fint* datatype, MPI_Fint* op,
                          MPI_Fint* comm, MPI_Fint* request, MPI_Fint* error) {
  MPI_Request started = MPI_REQUEST_NULL;
  const int code = MPI_Ireduce_scatter(in_c(sendbuf), in_c(recvbuf), counts, PMPI_Type_f2c(*datatype),
                                       PMPI_Op_f2c(*op), PMPI_Comm_f2c(*comm), &started);
  answer(code, started, request, error);
}

void mpi_ireduce_scatter_block_(void* sendbuf, void* recvbuf, MPI_Fint* count, MPI_Fint* datatype,
                                MPI_Fint* op, MPI_Fint* comm, MPI_Fint* request, MPI_Fint* error) {
  MPI_Request started = MPI_REQUEST_NULL;
  const int code = MPI_Ireduce_scatter_block(in_c(sendbuf), in_c(recvbuf), *count, PMPI_Type_f2c(*datatype),
                                             PMPI_Op_f2c(*op), PMPI_Comm_f2c(*comm), &started);
  answer(code, started, request, error);
}

void mpi_iallgather_(void* sendbuf, MPI_Fint* count, MPI_Fint* datatype, void* recvbuf, MPI_Fint* recvcount,
                     MPI_Fint* recvtype, MPI_Fint* comm, MPI_Fint* request, MPI_Fint* error) {
  MPI_Request started = MPI_REQUEST_NULL;
  const int code = MPI_Iallgather(in_c(sendbuf), *count, PMPI_Type_f2c(*datatype), in_c(recvbuf), *recvcount,
                                  PMPI_Type_f2c(*recvtype), PMPI_Comm_f2c(*comm), &started);
  answer(code, started, request, error);
}

void mpi_iallgatherv_(void* sendbuf, MPI_Fint* count, MPI_Fint* datatype, void* recvbuf, MPI_Fint* counts,
                      MPI_Fint* displs, MPI_Fint* recvtype, MPI_Fint* comm, MPI_Fint* request,
                      MPI_Fint* error) {
  MPI_Request started = MPI_REQUEST_NULL;
  const int code = MPI_Iallgatherv(in_c(sendbuf), *count, PMPI_Type_f2c(*datatype), in_c(recvbuf), counts,
                                   displs, PMPI_Type_f2c(*recvtype), PMPI_Comm_f2c(*comm), &started);
  answer(code, started, request, error);
}

void mpi_ibcast_(void* buffer, MPI_Fint* count, MPI_Fint* datatype, MPI_Fint* root, MPI_Fint* comm,
                 MPI_Fint* request, MPI_Fint* error) {
  MPI_Request started = MPI_REQUEST_NULL;
  const int code =
      MPI_Ibcast(in_c(buffer), *count, PMPI_Type_f2c(*datatype), *root, PMPI_Comm_f2c(*comm), &started);
  answer(code, started, request, error);
}

void mpi_ibarrier_(MPI_Fint* comm, MPI_Fint* request, MPI_Fint* error) {
  MPI_Request started = MPI_REQUEST_NULL;
  const int code = MPI_Ibarrier(PMPI_Comm_f2c(*comm), &started);
  answer(code, started, request, error);
}

// By these names the module mpi_f08 calls them.
[[gnu::alias("mpi_allreduce_")]] void ompi_allreduce_f(...);
[[gnu::alias("mpi_reduce_")]] void ompi_reduce_f(...);
[[gnu::alias("mpi_reduce_scatter_")]] void ompi_reduce_scatter_f(...);
[[gnu::alias("mpi_reduce_scatter_block_")]] void ompi_reduce_scatter_block_f(...);
[[gnu::alias("mpi_allgather_")]] void ompi_allgather_f(...);
[[gnu::alias("mpi_allgatherv_")]] void ompi_allgatherv_f(...);
[[gnu::alias("mpi_bcast_")]] void ompi_bcast_f(...);
[[gnu::alias("mpi_barrier_")]] void ompi_barrier_f(...);
[[gnu::alias("mpi_iallreduce_")]] void ompi_iallreduce_f(...);
[[gnu::alias("mpi_ireduce_")]] void ompi_ireduce_f(...);
[[gnu::alias("mpi_ireduce_scatter_")]] void ompi_ireduce_scatter_f(...);
[[gnu::alias("mpi_ireduce_scatter_block_")]] void ompi_ireduce_scatter_block_f(...);
[[gnu::alias("mpi_iallgather_")]] void ompi_iallgather_f(...);
[[gnu::alias("mpi_iallgatherv_")]] void ompi_iallgatherv_f(...);
[[gnu::alias("mpi_ibcast_")]] void ompi_ibcast_f(...);
[[gnu::alias("mpi_ibarrier_")]] void ompi_ibarrier_f(...);

}  // extern "C"

#pragma GCC visibility pop

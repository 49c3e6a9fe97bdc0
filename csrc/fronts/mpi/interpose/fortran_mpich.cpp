// The functions that the module mpi_f08 of MPICH, and of its descendants, calls instead of those of C. The
// rest of their Fortran bindings calls the C functions.
#include <mpi.h>

namespace {

void set(MPI_Fint* error, int code) {
  if (error) *error = code;
}

}  // namespace

extern "C" [[gnu::visibility("default")]] void mpi_barrier_f08_(const MPI_Fint* comm, MPI_Fint* error) {
  set(error, MPI_Barrier(PMPI_Comm_f2c(*comm)));
}

extern "C" [[gnu::visibility("default")]] void mpi_ibarrier_f08_(const MPI_Fint* comm, MPI_Fint* request,
                                                                 MPI_Fint* error) {
  MPI_Request started = MPI_REQUEST_NULL;
  const int code = MPI_Ibarrier(PMPI_Comm_f2c(*comm), &started);
  if (code == MPI_SUCCESS) *request = PMPI_Request_c2f(started);
  set(error, code);
}

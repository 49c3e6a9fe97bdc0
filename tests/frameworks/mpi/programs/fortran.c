// Calls what Open MPI's Fortran bindings would call, with Fortran's handles and addresses.
#include <mpi.h>
#include <stdio.h>

#define CHECK(condition)                                    \
  if (!(condition)) {                                       \
    fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
    MPI_Abort(MPI_COMM_WORLD, 3);                           \
  }

extern MPI_Fint mpi_fortran_in_place_;

void mpi_allreduce_(void*, void*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*);
void mpi_iallreduce_(void*, void*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*);
void mpi_scan_(void*, void*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*);
void mpi_exscan_(void*, void*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*);
void mpi_reduce_(void*, void*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*);
void mpi_reduce_scatter_(void*, void*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*);
void mpi_reduce_scatter_block_(void*, void*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*);
void mpi_allgather_(void*, MPI_Fint*, MPI_Fint*, void*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*);
void mpi_allgatherv_(void*, MPI_Fint*, MPI_Fint*, void*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*,
                     MPI_Fint*);
void mpi_gather_(void*, MPI_Fint*, MPI_Fint*, void*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*);
void mpi_gatherv_(void*, MPI_Fint*, MPI_Fint*, void*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*,
                  MPI_Fint*);
void mpi_scatter_(void*, MPI_Fint*, MPI_Fint*, void*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*);
void mpi_scatterv_(void*, MPI_Fint*, MPI_Fint*, MPI_Fint*, void*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*,
                   MPI_Fint*);
void mpi_alltoall_(void*, MPI_Fint*, MPI_Fint*, void*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*);
void mpi_alltoallv_(void*, MPI_Fint*, MPI_Fint*, MPI_Fint*, void*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*,
                    MPI_Fint*);
void mpi_bcast_(void*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*);
void mpi_barrier_(MPI_Fint*, MPI_Fint*);
void ompi_allreduce_f(void*, void*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*, MPI_Fint*);

int main(int argc, char** argv) {
  int level, rank, ranks;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Fint world = MPI_Comm_c2f(MPI_COMM_WORLD), integer = MPI_Type_c2f(MPI_INTEGER);
  MPI_Fint sum = MPI_Op_c2f(MPI_SUM), one = 1, root = 1, error = -1, request = 0;
  const int all = ranks * (ranks - 1) / 2;
  int in[8], out[8], own = -1, counts[8], offsets[8];
  for (int i = 0; i < ranks; ++i) {
    in[i] = rank;
    counts[i] = 1;
    offsets[i] = ranks - 1 - i;
  }
  void* in_place = &mpi_fortran_in_place_;

  mpi_allreduce_(in, out, &one, &integer, &sum, &world, &error);
  CHECK(error == MPI_SUCCESS && out[0] == all);
  out[0] = rank;
  mpi_allreduce_(in_place, out, &one, &integer, &sum, &world, &error);
  CHECK(error == MPI_SUCCESS && out[0] == all);
  out[0] = rank;
  ompi_allreduce_f(in_place, out, &one, &integer, &sum, &world, &error);
  CHECK(error == MPI_SUCCESS && out[0] == all);
  out[0] = rank;
  mpi_reduce_(rank == 1 ? in_place : out, out, &one, &integer, &sum, &root, &world, &error);
  CHECK(error == MPI_SUCCESS && (rank != 1 || out[0] == all));
  mpi_scan_(in, out, &one, &integer, &sum, &world, &error);
  CHECK(error == MPI_SUCCESS && out[0] == rank * (rank + 1) / 2);
  mpi_exscan_(in, out, &one, &integer, &sum, &world, &error);
  CHECK(error == MPI_SUCCESS && (rank == 0 || out[0] == rank * (rank - 1) / 2));
  mpi_reduce_scatter_(in, out, counts, &integer, &sum, &world, &error);
  CHECK(error == MPI_SUCCESS && out[0] == all);
  mpi_reduce_scatter_block_(in, out, &one, &integer, &sum, &world, &error);
  CHECK(error == MPI_SUCCESS && out[0] == all);
  mpi_allgather_(in, &one, &integer, out, &one, &integer, &world, &error);
  CHECK(error == MPI_SUCCESS && out[1] == 1);
  mpi_allgatherv_(in, &one, &integer, out, counts, offsets, &integer, &world, &error);
  CHECK(error == MPI_SUCCESS && out[0] == ranks - 1);
  out[0] = -1;
  mpi_gather_(in, &one, &integer, out, &one, &integer, &root, &world, &error);
  CHECK(error == MPI_SUCCESS && (rank != 1 || out[2] == 2));
  mpi_gatherv_(in, &one, &integer, out, counts, offsets, &integer, &root, &world, &error);
  CHECK(error == MPI_SUCCESS && (rank != 1 || out[0] == ranks - 1));
  mpi_scatter_(out, &one, &integer, rank == 1 ? in_place : &own, &one, &integer, &root, &world, &error);
  CHECK(error == MPI_SUCCESS && (rank == 1 || own == ranks - 1 - rank));
  mpi_scatterv_(out, counts, offsets, &integer, &own, &one, &integer, &root, &world, &error);
  CHECK(error == MPI_SUCCESS && own == rank);
  mpi_alltoall_(in, &one, &integer, out, &one, &integer, &world, &error);
  CHECK(error == MPI_SUCCESS && out[0] == 0 && out[2] == 2);
  mpi_alltoallv_(in_place, counts, offsets, &integer, out, counts, offsets, &integer, &world, &error);
  CHECK(error == MPI_SUCCESS && out[0] == ranks - 1 - rank);
  out[0] = rank;
  mpi_bcast_(out, &one, &integer, &root, &world, &error);
  CHECK(error == MPI_SUCCESS && out[0] == 1);
  mpi_barrier_(&world, &error);
  CHECK(error == MPI_SUCCESS);
  mpi_iallreduce_(in, out, &one, &integer, &sum, &world, &request, &error);
  MPI_Request started = MPI_Request_f2c(request);
  MPI_Wait(&started, MPI_STATUS_IGNORE);
  CHECK(error == MPI_SUCCESS && out[0] == all);
  MPI_Finalize();
  return 0;
}

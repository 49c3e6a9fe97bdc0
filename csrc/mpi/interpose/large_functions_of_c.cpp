// The functions with large counts, which came with MPI 4.
#include "mpi/interpose/taken_over.h"

RINGREDUCE_FUNCTIONS(RINGREDUCE_LARGE, large, MPI_Count, MPI_Aint)
RINGREDUCE_FUNCTIONS(RINGREDUCE_LARGE_NONBLOCKING, large_nonblocking, MPI_Count, MPI_Aint, request)

// The functions with large counts, introduced by MPI 4.
#include "fronts/mpi/interpose/taken_over.h"

RINGREDUCE_FUNCTIONS(RINGREDUCE_TAKE_OVER, RINGREDUCE_LARGE, PassedInLargeC)
RINGREDUCE_FUNCTIONS(RINGREDUCE_TAKE_OVER, RINGREDUCE_LARGE_NONBLOCKING, PassedInLargeC, request)

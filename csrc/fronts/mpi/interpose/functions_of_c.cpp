// The functions as C programs call them.
#include "fronts/mpi/interpose/taken_over.h"

RINGREDUCE_FUNCTIONS(RINGREDUCE_TAKE_OVER, RINGREDUCE_BLOCKING, PassedInC)
RINGREDUCE_FUNCTIONS(RINGREDUCE_TAKE_OVER, RINGREDUCE_NONBLOCKING, PassedInC, request)
RINGREDUCE_TAKE_OVER(Barrier, barrier, Barrier, (), ())
RINGREDUCE_TAKE_OVER(Ibarrier, barrier, Barrier, (), (), request)

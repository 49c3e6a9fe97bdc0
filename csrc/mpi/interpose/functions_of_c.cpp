// The functions as C programs call them.
#include "mpi/interpose/taken_over.h"

RINGREDUCE_FUNCTIONS(RINGREDUCE_BLOCKING, blocking, int, int)
RINGREDUCE_FUNCTIONS(RINGREDUCE_NONBLOCKING, nonblocking, int, int, request)
RINGREDUCE_TAKE_OVER(Barrier, Barrier, blocking, (), ())
RINGREDUCE_TAKE_OVER(Ibarrier, Barrier, nonblocking, (), (), request)

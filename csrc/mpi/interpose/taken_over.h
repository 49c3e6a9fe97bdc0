// The functions that are taken over, once for all of their forms. A form says how MPI spells a function's
// name, what its counts and displacements are, and whether it ends with a request:
//
//   RINGREDUCE_FUNCTIONS(RINGREDUCE_NONBLOCKING, nonblocking, int, int, request)
#pragma once

#include "mpi/interpose/serve.h"

#define RINGREDUCE_UNPACK(...) __VA_ARGS__
#define RINGREDUCE_JOIN(a, b) RINGREDUCE_JOIN_NAMES(a, b)
#define RINGREDUCE_JOIN_NAMES(a, b) a##b

// MPI's name, after "MPI_", of a function that it calls Bcast, and that asks for what is called so here.
#define RINGREDUCE_BLOCKING(Name, name) Name
#define RINGREDUCE_LARGE(Name, name) Name##_c
#define RINGREDUCE_NONBLOCKING(Name, name) I##name
#define RINGREDUCE_LARGE_NONBLOCKING(Name, name) I##name##_c

#define RINGREDUCE_TAKE_OVER(name, Asked, form, parameters, arguments, ...)                             \
  extern "C" [[gnu::visibility("default")]] int RINGREDUCE_JOIN(                                        \
      MPI_, name)(RINGREDUCE_UNPACK parameters MPI_Comm comm __VA_OPT__(, MPI_Request * __VA_ARGS__)) { \
    using namespace ringreduce::mpi;                                                                    \
    return serve(comm, form, Asked{RINGREDUCE_UNPACK arguments} __VA_OPT__(, __VA_ARGS__), [&] {        \
      return RINGREDUCE_JOIN(PMPI_, name)(RINGREDUCE_UNPACK arguments comm __VA_OPT__(, __VA_ARGS__));  \
    });                                                                                                 \
  }

#define RINGREDUCE_FUNCTIONS(SPELLED, form, Count, Displacement, ...)                                  \
  RINGREDUCE_TAKE_OVER(SPELLED(Allreduce, allreduce), Allreduce, form,                                 \
                       (const void* send, void* receive, Count count, MPI_Datatype type, MPI_Op op, ), \
                       (send, receive, count, type, op, ), __VA_ARGS__)                                \
  RINGREDUCE_TAKE_OVER(                                                                                \
      SPELLED(Reduce, reduce), Reduce, form,                                                           \
      (const void* send, void* receive, Count count, MPI_Datatype type, MPI_Op op, int root, ),        \
      (send, receive, count, type, op, root, ), __VA_ARGS__)                                           \
  RINGREDUCE_TAKE_OVER(                                                                                \
      SPELLED(Reduce_scatter, reduce_scatter), ReduceScatter, form,                                    \
      (const void* send, void* receive, const Count counts[], MPI_Datatype type, MPI_Op op, ),         \
      (send, receive, counts, type, op, ), __VA_ARGS__)                                                \
  RINGREDUCE_TAKE_OVER(SPELLED(Reduce_scatter_block, reduce_scatter_block), ReduceScatterBlock, form,  \
                       (const void* send, void* receive, Count count, MPI_Datatype type, MPI_Op op, ), \
                       (send, receive, count, type, op, ), __VA_ARGS__)                                \
  RINGREDUCE_TAKE_OVER(SPELLED(Allgather, allgather), Allgather, form,                                 \
                       (const void* send, Count send_count, MPI_Datatype send_type, void* receive,     \
                        Count count, MPI_Datatype type, ),                                             \
                       (send, send_count, send_type, receive, count, type, ), __VA_ARGS__)             \
  RINGREDUCE_TAKE_OVER(SPELLED(Allgatherv, allgatherv), Allgatherv, form,                              \
                       (const void* send, Count send_count, MPI_Datatype send_type, void* receive,     \
                        const Count counts[], const Displacement offsets[], MPI_Datatype type, ),      \
                       (send, send_count, send_type, receive, counts, offsets, type, ), __VA_ARGS__)   \
  RINGREDUCE_TAKE_OVER(SPELLED(Bcast, bcast), Bcast, form,                                             \
                       (void* buffer, Count count, MPI_Datatype type, int root, ),                     \
                       (buffer, count, type, root, ), __VA_ARGS__)

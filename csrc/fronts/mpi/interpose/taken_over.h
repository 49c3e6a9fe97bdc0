// The functions that are taken over, listed once for all of their forms. A form defines the code for each
// function, the spelling of its name, its arguments, and whether it ends with a request:
//
//   RINGREDUCE_FUNCTIONS(RINGREDUCE_TAKE_OVER, RINGREDUCE_NONBLOCKING, PassedInC, request)
#pragma once

#include "fronts/mpi/interpose/serve.h"

struct PassedInC {
  using Source = const void*;
  using Buffer = void*;
  using Count = int;
  using Counts = const int*;
  using Offsets = const int*;
  using Type = MPI_Datatype;
  using Op = MPI_Op;
  using Root = int;
};

struct PassedInLargeC : PassedInC {
  using Count = MPI_Count;
  using Counts = const MPI_Count*;
  using Offsets = const MPI_Aint*;
};

#define RINGREDUCE_UNPACK(...) __VA_ARGS__
#define RINGREDUCE_JOIN(a, b) RINGREDUCE_JOIN_NAMES(a, b)
#define RINGREDUCE_JOIN_NAMES(a, b) a##b
#define RINGREDUCE_TEXT(name) RINGREDUCE_TEXT_OF(name)
#define RINGREDUCE_TEXT_OF(name) #name

// MPI's name, after "MPI_", of a function (Bcast), and its lower-case form (bcast) for other names.
#define RINGREDUCE_BLOCKING(Name, name) Name
#define RINGREDUCE_LARGE(Name, name) Name##_c
#define RINGREDUCE_NONBLOCKING(Name, name) I##name
#define RINGREDUCE_LARGE_NONBLOCKING(Name, name) I##name##_c

#define RINGREDUCE_TAKE_OVER(Name, function, Asked, parameters, arguments, ...)                              \
  extern "C" [[gnu::visibility("default")]] int RINGREDUCE_JOIN(                                             \
      MPI_, Name)(RINGREDUCE_UNPACK parameters MPI_Comm comm __VA_OPT__(, MPI_Request * __VA_ARGS__)) {      \
    using namespace ringreduce::mpi;                                                                         \
    const auto hand_on = [&] {                                                                               \
      return RINGREDUCE_JOIN(PMPI_, Name)(RINGREDUCE_UNPACK arguments comm __VA_OPT__(, __VA_ARGS__));       \
    };                                                                                                       \
    return serve(Function::function, "MPI_" RINGREDUCE_TEXT(Name), comm, Asked{RINGREDUCE_UNPACK arguments}, \
                 hand_on __VA_OPT__(, __VA_ARGS__));                                                         \
  }

#define RINGREDUCE_FUNCTIONS(MAKE, SPELLED, Passed, ...)                                                    \
  MAKE(SPELLED(Allreduce, allreduce), allreduce, Reduce,                                                    \
       (Passed::Source send, Passed::Buffer receive, Passed::Count count, Passed::Type type,                \
        Passed::Op op, ),                                                                                   \
       (send, receive, count, type, op, ), __VA_ARGS__)                                                     \
  MAKE(SPELLED(Reduce, reduce), reduce, Reduce,                                                             \
       (Passed::Source send, Passed::Buffer receive, Passed::Count count, Passed::Type type, Passed::Op op, \
        Passed::Root root, ),                                                                               \
       (send, receive, count, type, op, root, ), __VA_ARGS__)                                               \
  MAKE(SPELLED(Scan, scan), scan, Scan,                                                                     \
       (Passed::Source send, Passed::Buffer receive, Passed::Count count, Passed::Type type,                \
        Passed::Op op, ),                                                                                   \
       (send, receive, count, type, op, ), __VA_ARGS__)                                                     \
  MAKE(SPELLED(Exscan, exscan), exscan, Exscan,                                                             \
       (Passed::Source send, Passed::Buffer receive, Passed::Count count, Passed::Type type,                \
        Passed::Op op, ),                                                                                   \
       (send, receive, count, type, op, ), __VA_ARGS__)                                                     \
  MAKE(SPELLED(Reduce_scatter, reduce_scatter), reduce_scatter, ReduceScatter,                              \
       (Passed::Source send, Passed::Buffer receive, Passed::Counts counts, Passed::Type type,              \
        Passed::Op op, ),                                                                                   \
       (send, receive, counts, type, op, ), __VA_ARGS__)                                                    \
  MAKE(SPELLED(Reduce_scatter_block, reduce_scatter_block), reduce_scatter_block, ReduceScatter,            \
       (Passed::Source send, Passed::Buffer receive, Passed::Count count, Passed::Type type,                \
        Passed::Op op, ),                                                                                   \
       (send, receive, count, type, op, ), __VA_ARGS__)                                                     \
  MAKE(SPELLED(Allgather, allgather), allgather, Allgather,                                                 \
       (Passed::Source send, Passed::Count send_count, Passed::Type send_type, Passed::Buffer receive,      \
        Passed::Count count, Passed::Type type, ),                                                          \
       (send, send_count, send_type, receive, count, type, ), __VA_ARGS__)                                  \
  MAKE(SPELLED(Allgatherv, allgatherv), allgatherv, Allgather,                                              \
       (Passed::Source send, Passed::Count send_count, Passed::Type send_type, Passed::Buffer receive,      \
        Passed::Counts counts, Passed::Offsets offsets, Passed::Type type, ),                               \
       (send, send_count, send_type, receive, counts, offsets, type, ), __VA_ARGS__)                        \
  MAKE(SPELLED(Gather, gather), gather, Gather,                                                             \
       (Passed::Source send, Passed::Count send_count, Passed::Type send_type, Passed::Buffer receive,      \
        Passed::Count count, Passed::Type type, Passed::Root root, ),                                       \
       (send, send_count, send_type, receive, count, type, root, ), __VA_ARGS__)                            \
  MAKE(SPELLED(Gatherv, gatherv), gatherv, Gather,                                                          \
       (Passed::Source send, Passed::Count send_count, Passed::Type send_type, Passed::Buffer receive,      \
        Passed::Counts counts, Passed::Offsets offsets, Passed::Type type, Passed::Root root, ),            \
       (send, send_count, send_type, receive, counts, offsets, type, root, ), __VA_ARGS__)                  \
  MAKE(SPELLED(Scatter, scatter), scatter, Scatter,                                                         \
       (Passed::Source send, Passed::Count send_count, Passed::Type send_type, Passed::Buffer receive,      \
        Passed::Count count, Passed::Type type, Passed::Root root, ),                                       \
       (send, send_count, send_type, receive, count, type, root, ), __VA_ARGS__)                            \
  MAKE(SPELLED(Scatterv, scatterv), scatterv, Scatter,                                                      \
       (Passed::Source send, Passed::Counts send_counts, Passed::Offsets send_offsets,                      \
        Passed::Type send_type, Passed::Buffer receive, Passed::Count count, Passed::Type type,             \
        Passed::Root root, ),                                                                               \
       (send, send_counts, send_offsets, send_type, receive, count, type, root, ), __VA_ARGS__)             \
  MAKE(SPELLED(Alltoall, alltoall), alltoall, Alltoall,                                                     \
       (Passed::Source send, Passed::Count send_count, Passed::Type send_type, Passed::Buffer receive,      \
        Passed::Count count, Passed::Type type, ),                                                          \
       (send, send_count, send_type, receive, count, type, ), __VA_ARGS__)                                  \
  MAKE(SPELLED(Alltoallv, alltoallv), alltoallv, Alltoall,                                                  \
       (Passed::Source send, Passed::Counts send_counts, Passed::Offsets send_offsets,                      \
        Passed::Type send_type, Passed::Buffer receive, Passed::Counts counts, Passed::Offsets offsets,     \
        Passed::Type type, ),                                                                               \
       (send, send_counts, send_offsets, send_type, receive, counts, offsets, type, ), __VA_ARGS__)         \
  MAKE(SPELLED(Bcast, bcast), bcast, Bcast,                                                                 \
       (Passed::Buffer buffer, Passed::Count count, Passed::Type type, Passed::Root root, ),                \
       (buffer, count, type, root, ), __VA_ARGS__)

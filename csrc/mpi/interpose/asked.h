// What a program asks for: one struct for each function, with its arguments. Each says how many bytes the
// call moves in all, if it is one for us, and turns itself into a call of ours.
//
// weigh() looks only at what MPI obliges all ranks to pass alike. MPI_Allreduce and its kin take the same
// datatype, op and count on every rank. MPI_Bcast and MPI_Allgather do not: one rank may pass ten integers
// where another passes one element of a datatype of its own that has ten of them. What must be equal is the
// bytes, so only these count; whoever has a datatype of its own packs and unpacks here. Wrong arguments go
// to the library, which knows what to say.
#pragma once

#include <mpi.h>

#include "mpi/interpose/functions.h"
#include "mpi/interpose/seat.h"
#include "mpi/interpose/served_call.h"
#include "mpi/interpose/settings.h"

namespace ringreduce::mpi {

inline constexpr MPI_Count not_ours = -1;
// Calls that move more are handed on, so that what is packed can be counted in an int.
inline constexpr MPI_Count most_moved = MPI_Count{1} << 30;

// The counts of all ranks, as either form of a function takes them; null: 0, 1, 2 ... elements of `even`.
class Counts {
 public:
  Counts(const int* counts) : small_(counts) {}
  Counts(const MPI_Count* counts) : large_(counts) {}
  explicit operator bool() const { return small_ || large_; }
  MPI_Count operator[](int rank) const { return small_ ? small_[rank] : large_[rank]; }

 private:
  const int* small_ = nullptr;
  const MPI_Count* large_ = nullptr;
};

// Whether all ranks have the same. Then a call without extents does, whose plan the engine keeps.
inline bool all_equal(const Counts& counts, int size) {
  for (int rank = 1; rank < size; ++rank) {
    if (counts[rank] != counts[0]) return false;
  }
  return true;
}

// Calls with extents are planned anew each time, which takes longer than short ones do.
inline bool too_short(const Counts& counts, int size, MPI_Count bytes) {
  constexpr MPI_Count shortest_uneven = 16 << 10;
  return bytes < shortest_uneven && settings().mode != Settings::Mode::all && !all_equal(counts, size);
}

class Offsets {
 public:
  Offsets(const int* offsets) : small_(offsets) {}
  Offsets(const MPI_Aint* offsets) : large_(offsets) {}
  explicit operator bool() const { return small_ || large_; }
  MPI_Aint operator[](int rank) const { return small_ ? small_[rank] : large_[rank]; }

 private:
  const int* small_ = nullptr;
  const MPI_Aint* large_ = nullptr;
};

struct Allreduce {
  static constexpr Function function = Function::allreduce;
  const void* send;
  void* receive;
  MPI_Count count;
  MPI_Datatype type;
  MPI_Op op;
  MPI_Count weigh(const Seat& seat, Call& call) const;
  void fill(const Seat& seat, ServedCall& served) const;
};

struct Reduce {
  static constexpr Function function = Function::reduce;
  const void* send;
  void* receive;
  MPI_Count count;
  MPI_Datatype type;
  MPI_Op op;
  int root;
  MPI_Count weigh(const Seat& seat, Call& call) const;
  void fill(const Seat& seat, ServedCall& served) const;
};

struct ReduceScatterBlock {
  static constexpr Function function = Function::reduce_scatter_block;
  const void* send;
  void* receive;
  MPI_Count count;  // of a block
  MPI_Datatype type;
  MPI_Op op;
  MPI_Count weigh(const Seat& seat, Call& call) const;
  void fill(const Seat& seat, ServedCall& served) const;
};

struct ReduceScatter {
  static constexpr Function function = Function::reduce_scatter;
  const void* send;
  void* receive;
  Counts counts;
  MPI_Datatype type;
  MPI_Op op;
  MPI_Count weigh(const Seat& seat, Call& call) const;
  void fill(const Seat& seat, ServedCall& served) const;
};

struct Allgather {
  static constexpr Function function = Function::allgather;
  const void* send;
  MPI_Count send_count;
  MPI_Datatype send_type;
  void* receive;
  MPI_Count count;  // of a block
  MPI_Datatype type;
  MPI_Count weigh(const Seat& seat, Call& call) const;
  void fill(const Seat& seat, ServedCall& served) const;
};

struct Allgatherv {
  static constexpr Function function = Function::allgatherv;
  const void* send;
  MPI_Count send_count;
  MPI_Datatype send_type;
  void* receive;
  Counts counts;
  Offsets offsets;
  MPI_Datatype type;
  MPI_Count weigh(const Seat& seat, Call& call) const;
  void fill(const Seat& seat, ServedCall& served) const;
};

struct Bcast {
  static constexpr Function function = Function::bcast;
  void* buffer;
  MPI_Count count;
  MPI_Datatype type;
  int root;
  MPI_Count weigh(const Seat& seat, Call& call) const;
  void fill(const Seat& seat, ServedCall& served) const;
};

struct Barrier {
  static constexpr Function function = Function::barrier;
  MPI_Count weigh(const Seat& seat, Call& call) const;
  void fill(const Seat& seat, ServedCall& served) const;
};

}  // namespace ringreduce::mpi

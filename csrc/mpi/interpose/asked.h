// What a program asks for: one struct for functions that have the same arguments. Each says how many bytes
// the call moves in all, if it is one for us, and turns itself into a call of ours.
//
// weigh() looks only at what MPI obliges all ranks to pass alike. MPI_Allreduce and its kin take the same
// datatype, op and count on every rank. MPI_Bcast and MPI_Allgather do not: one rank may pass ten integers
// where another passes one element of a datatype of its own that has ten of them. What must be equal is the
// bytes, so only these count; whoever has a datatype of its own packs and unpacks here. Wrong arguments go
// to the library, which knows what to say.
#pragma once

#include <mpi.h>

#include <optional>

#include "mpi/interpose/seat.h"
#include "mpi/interpose/served_call.h"

namespace ringreduce::mpi {

inline constexpr MPI_Count not_ours = -1;
// Calls that move more are handed on, so that what is packed can be counted in an int.
inline constexpr MPI_Count most_moved = MPI_Count{1} << 30;

// Something of each rank's in an array, as either form of a function takes it.
template <typename Large>
class OfRanks {
 public:
  OfRanks(const int* small) : small_(small) {}
  OfRanks(const Large* large) : large_(large) {}
  explicit operator bool() const { return small_ || large_; }
  Large operator[](int rank) const { return small_ ? small_[rank] : large_[rank]; }

 private:
  const int* small_ = nullptr;
  const Large* large_ = nullptr;
};
using Offsets = OfRanks<MPI_Aint>;

// How many elements the blocks of all ranks have.
class Counts {
 public:
  Counts(MPI_Count of_each) : of_each_(of_each) {}
  template <typename Count>
  Counts(const Count* of_ranks) : of_ranks_(of_ranks) {}
  MPI_Count operator[](int rank) const { return of_ranks_ ? of_ranks_[rank] : of_each_; }
  // Whether all ranks have the same. Then a call without extents does, whose plan the engine keeps.
  bool equal(int size) const;
  // Of all blocks together; below zero if one of them is, or if there is no array where there should be one.
  MPI_Count sum(int size) const;

 private:
  OfRanks<MPI_Count> of_ranks_ = static_cast<const int*>(nullptr);
  MPI_Count of_each_ = not_ours;
};

struct Reduce {
  const void* send;
  void* receive;
  MPI_Count count;
  MPI_Datatype type;
  MPI_Op op;
  std::optional<int> root = std::nullopt;  // none: MPI_Allreduce
  MPI_Count weigh(const Seat& seat, Call& call) const;
  void fill(const Seat& seat, ServedCall& served) const;
};

struct ReduceScatter {
  const void* send;
  void* receive;
  Counts counts;
  MPI_Datatype type;
  MPI_Op op;
  MPI_Count weigh(const Seat& seat, Call& call) const;
  void fill(const Seat& seat, ServedCall& served) const;
};

struct Allgather {
  const void* send;
  MPI_Count send_count;
  MPI_Datatype send_type;
  void* receive;
  Counts counts;
  MPI_Datatype type;
  std::optional<Offsets> offsets = std::nullopt;  // none: one block behind the other, all of one length
  MPI_Count weigh(const Seat& seat, Call& call) const;
  void fill(const Seat& seat, ServedCall& served) const;
  MPI_Count begin_of(int rank) const { return offsets ? (*offsets)[rank] : rank * counts[0]; }
};

struct Allgatherv : Allgather {
  Allgatherv(const void* send, MPI_Count send_count, MPI_Datatype send_type, void* receive, Counts counts,
             Offsets offsets, MPI_Datatype type)
      : Allgather{send, send_count, send_type, receive, counts, type, offsets} {}
};

struct Bcast {
  void* buffer;
  MPI_Count count;
  MPI_Datatype type;
  int root;
  MPI_Count weigh(const Seat& seat, Call& call) const;
  void fill(const Seat& seat, ServedCall& served) const;
};

struct Barrier {
  MPI_Count weigh(const Seat& seat, Call& call) const;
  void fill(const Seat&, ServedCall&) const {}
};

}  // namespace ringreduce::mpi

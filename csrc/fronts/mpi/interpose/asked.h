// A program's call: one struct for functions that have the same arguments. Each reports how many bytes the
// call moves in total, if it can be served, and turns itself into an engine call.
//
// weigh() uses only what MPI requires to be the same on all ranks. MPI_Allreduce and similar functions take
// the same datatype, op and count on every rank. MPI_Bcast and MPI_Allgather do not: one rank may pass ten
// integers, and another one element of its own datatype of ten integers. The bytes must be equal, so only
// these count, and a rank with its own datatype packs and unpacks here. In MPI_Gatherv, MPI_Scatterv and
// MPI_Alltoallv, only the two ends of a message know its bytes, so nothing counts. Wrong arguments go to the
// library, which reports the error.
#pragma once

#include <mpi.h>

#include <optional>

#include "fronts/mpi/interpose/seat.h"
#include "fronts/mpi/interpose/served_call.h"

namespace ringreduce::mpi {

inline constexpr MPI_Count not_ours = -1;
// Calls that are known to move more are handed on, so that packed bytes can be counted in an int.
inline constexpr MPI_Count most_moved = MPI_Count{1} << 30;

// A number per rank in an array, in either form of a function.
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

// The number of elements in each rank's block.
class Counts {
 public:
  Counts(MPI_Count of_each) : of_each_(of_each) {}
  template <typename Count>
  Counts(const Count* of_ranks) : of_ranks_(of_ranks) {}
  MPI_Count operator[](int rank) const { return of_ranks_ ? of_ranks_[rank] : of_each_; }
  // Whether all ranks have the same number. A call without extents then suffices, whose plan the engine
  // keeps.
  bool equal(int size) const;
  // Over all blocks; negative if one of them is, or if a required array is missing.
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
  std::optional<int> root = std::nullopt;
  Collective collective = root ? Collective::reduce : Collective::all_reduce;
  MPI_Count weigh(const Seat& seat, Call& call) const;
  void fill(const Seat& seat, ServedCall& served) const;
  // Whether a rank gets a result. None goes to the first rank of MPI_Exscan.
  bool gets(int rank) const { return collective == Collective::exscan ? rank > 0 : !root || *root == rank; }
};

template <Collective which>
struct Prefix : Reduce {
  Prefix(const void* send, void* receive, MPI_Count count, MPI_Datatype type, MPI_Op op)
      : Reduce{send, receive, count, type, op, std::nullopt, which} {}
};
using Scan = Prefix<Collective::scan>;
using Exscan = Prefix<Collective::exscan>;

struct ReduceScatter {
  const void* send;
  void* receive;
  Counts counts;
  MPI_Datatype type;
  MPI_Op op;
  MPI_Count weigh(const Seat& seat, Call& call) const;
  void fill(const Seat& seat, ServedCall& served) const;
};

// What a rank sends, or receives, of the functions that move blocks.
struct Side {
  const void* memory;
  Counts counts;
  MPI_Datatype type;
  std::optional<Offsets> offsets = std::nullopt;  // none: one block after the other, all of one length
  MPI_Count begin_of(int rank) const { return offsets ? (*offsets)[rank] : rank * counts[0]; }
};

class Blocks {
 public:
  MPI_Count weigh(const Seat& seat, Call& call) const;
  void fill(const Seat& seat, ServedCall& served) const;

 protected:
  Blocks(Collective collective, Side send, Side receive, std::optional<int> root)
      : collective_(collective), send_(send), receive_(receive), root_(root) {}

 private:
  // The side that holds all blocks, on every rank or on the root alone; and the other, of which the block, or
  // all blocks, may be MPI_IN_PLACE in the first.
  const Side& all() const { return collective_ == Collective::scatter ? send_ : receive_; }
  const Side& own() const { return collective_ == Collective::scatter ? receive_ : send_; }
  bool holds_all(int rank) const { return !root_ || *root_ == rank; }
  bool swaps() const { return collective_ == Collective::all_to_all; }
  // Whether only the two ends of a message know its length.
  bool is_blind() const { return all().offsets && collective_ != Collective::all_gather; }
  // own(), if need be in all().
  Side own_in_memory(int rank) const;

  Collective collective_;
  Side send_, receive_;
  std::optional<int> root_;
};

// With the arguments of each function in MPI's order.
template <Collective collective>
struct Move : Blocks {
  using Type = MPI_Datatype;
  using Root = std::optional<int>;
  Move(const void* send, Counts sent, Type send_type, void* receive, Counts counts, Type type, Root root = {})
      : Blocks(collective, {send, sent, send_type}, {receive, counts, type}, root) {}
  Move(const void* send, Counts sent, Type send_type, void* receive, Counts counts, Offsets offsets,
       Type type, Root root = {})
      : Blocks(collective, {send, sent, send_type}, {receive, counts, type, offsets}, root) {}
  Move(const void* send, Counts sent, Offsets from, Type send_type, void* receive, Counts counts, Type type,
       Root root)
      : Blocks(collective, {send, sent, send_type, from}, {receive, counts, type}, root) {}
  Move(const void* send, Counts sent, Offsets from, Type send_type, void* receive, Counts counts,
       Offsets offsets, Type type)
      : Blocks(collective, {send, sent, send_type, from}, {receive, counts, type, offsets}, {}) {}
};
using Allgather = Move<Collective::all_gather>;
using Gather = Move<Collective::gather>;
using Scatter = Move<Collective::scatter>;
using Alltoall = Move<Collective::all_to_all>;

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

#include "fronts/mpi/interpose/asked.h"

#include "fronts/mpi/interpose/settings.h"

namespace ringreduce::mpi {
namespace {

// A program's own datatype may contain addresses, with MPI_BOTTOM as the buffer.
bool is_memory(const void* buffer, const Shape& shape) {
  return buffer != MPI_IN_PLACE && (buffer != nullptr || !shape.plain);
}

// Calls with extents are planned each time, which takes longer than a short call.
bool too_short(const Counts& counts, int size, MPI_Count bytes) {
  constexpr MPI_Count shortest_uneven = 16 << 10;
  return bytes < shortest_uneven && mode() != Mode::all && !counts.equal(size);
}

// Blocks of these many elements: at the offsets, or one after the other.
void fill_extents(Extents& extents, const Counts& counts, const Offsets* offsets, MPI_Count unit, int size) {
  std::size_t end = 0;
  for (int rank = 0; rank < size; ++rank) {
    if (offsets && counts[rank] > 0) end = static_cast<std::size_t>((*offsets)[rank] * unit);
    extents.offset[rank] = end;
    extents.count[rank] = static_cast<std::size_t>(counts[rank] * unit);
    end += extents.count[rank];
  }
}

// The same of the input and of the output.
Extents& use_one(ServedCall& served, int size) {
  Extents& extents = served.extents(true, size);
  served.call.input_extents = served.call.output_extents = &extents;
  return extents;
}

}  // namespace

bool Counts::equal(int size) const {
  for (int rank = 1; of_ranks_ && rank < size; ++rank) {
    if (of_ranks_[rank] != of_ranks_[0]) return false;
  }
  return true;
}

MPI_Count Counts::sum(int size) const {
  if (!of_ranks_) return of_each_ * size;
  MPI_Count sum = 0;
  for (int rank = 0; rank < size; ++rank) {
    if (of_ranks_[rank] < 0) return not_ours;
    sum += of_ranks_[rank];
  }
  return sum;
}

// --- functions that reduce -------------------------------------------------------------------------------

namespace {

// For the elements of all ranks' blocks together.
MPI_Count weigh_reduction(Collective collective, MPI_Count elements, MPI_Datatype type, MPI_Op op,
                          Call& call) {
  const Kind* kind = predefined(type);
  if (elements <= 0 || !kind) return not_ours;
  call.collective = collective;
  if (kind->shape.plain && is_users(op)) {
    call.op = user_defined;
    call.dtype = kind->dtype.value_or(DType::uint8);
  } else if (reduces(*kind, op, call.op)) {
    call.dtype = *kind->dtype;
  } else {
    return not_ours;
  }
  return elements * kind->shape.size;
}

void fill_op(MPI_Datatype type, MPI_Op op, ServedCall& served) {
  if (served.call.op == user_defined) served.combine_by(op, type);
}

}  // namespace

MPI_Count Reduce::weigh(const Seat& seat, Call& call) const {
  if (send == nullptr || (root && (*root < 0 || *root >= seat.size()))) return not_ours;
  const bool in_place = send == MPI_IN_PLACE;
  if (in_place && root && !gets(seat.rank())) return not_ours;
  if ((in_place || gets(seat.rank())) && (receive == nullptr || receive == MPI_IN_PLACE)) return not_ours;
  call.root = root.value_or(0);
  return weigh_reduction(collective, count, type, op, call);
}

void Reduce::fill(const Seat& seat, ServedCall& served) const {
  fill_op(type, op, served);
  served.call.count = static_cast<std::size_t>(count);
  served.call.input = send == MPI_IN_PLACE ? receive : send;
  served.call.output = gets(seat.rank()) ? receive : nullptr;
}

MPI_Count ReduceScatter::weigh(const Seat& seat, Call& call) const {
  if (send == nullptr || receive == MPI_IN_PLACE) return not_ours;
  const MPI_Count bytes =
      weigh_reduction(Collective::reduce_scatter, counts.sum(seat.size()), type, op, call);
  if (bytes < 0 || too_short(counts, seat.size(), bytes)) return not_ours;
  const bool needs_memory = counts[seat.rank()] > 0 || send == MPI_IN_PLACE;
  return receive == nullptr && needs_memory ? not_ours : bytes;
}

void ReduceScatter::fill(const Seat& seat, ServedCall& served) const {
  fill_op(type, op, served);
  const MPI_Count own = counts[seat.rank()];
  served.call.input = send == MPI_IN_PLACE ? receive : send;
  served.call.output = receive;
  if (send == MPI_IN_PLACE) {
    // All ranks' input lies in the result's memory, but the engine expects this rank's result elsewhere: its
    // own block is in the middle. The result therefore goes through another buffer.
    std::byte* room = served.room(static_cast<std::size_t>(own) * element_of(served.call));
    served.call.output = room;
    served.land(room, receive, own, type);
  }
  if (counts.equal(seat.size())) {
    served.call.count = static_cast<std::size_t>(own);
  } else {
    fill_extents(use_one(served, seat.size()), counts, nullptr, 1, seat.size());
  }
}

// --- functions that move bytes as they are ---------------------------------------------------------------

namespace {

MPI_Count in_bytes(MPI_Count count, const Shape& shape) {
  return shape.size < 0 || count < 0 ? not_ours : count * shape.size;
}

MPI_Count within_limits(MPI_Count bytes) {
  return bytes <= 0 || bytes > most_moved ? not_ours : bytes;
}

void* element(const void* memory, MPI_Count number, const Shape& shape) {
  return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(memory) +
                                 static_cast<std::uintptr_t>(number * shape.extent));
}

// What one side of a call holds on a rank: the blocks of all ranks, or one.
struct Part {
  Side side;
  int first, last;
  Shape shape = shape_of(side.type);

  bool is_one() const { return last - first == 1; }
  std::size_t block(int rank) const { return static_cast<std::size_t>(side.counts[rank] * shape.size); }
  MPI_Count elements() const { return is_one() ? side.counts[first] : side.counts.sum(last); }
  // Negative if it cannot be ours.
  MPI_Count bytes() const {
    const MPI_Count bytes = in_bytes(elements(), shape);
    const bool lacks_memory = bytes != 0 && !is_memory(side.memory, shape);
    return lacks_memory || (side.offsets && !*side.offsets) ? not_ours : bytes;
  }
  void* at(int rank) const { return element(side.memory, is_one() ? 0 : side.begin_of(rank), shape); }
  // Whether it lies in memory as the engine expects: equal blocks without gaps, others in order.
  bool is_direct(bool equal) const {
    MPI_Count end = 0;
    for (int rank = first; side.offsets && rank < last; ++rank) {
      if (side.counts[rank] == 0) continue;
      const MPI_Count begin = side.begin_of(rank);
      if (equal ? begin != end : begin < end) return false;
      end = begin + side.counts[rank];
    }
    return shape.plain;
  }
  // Calls work(block in memory, block in a message, elements) for those that are not empty.
  template <typename Work>
  void each(std::byte* message, Work work) const {
    for (int rank = first; rank < last; message += block(rank), ++rank) {
      if (block(rank) > 0) work(at(rank), message, side.counts[rank]);
    }
  }
  const void* as_input(bool equal, ServedCall& served) const {
    if (is_direct(equal)) return side.memory;
    std::byte* const room = served.room(static_cast<std::size_t>(bytes()));
    each(room, [&](void* from, std::byte* to, MPI_Count n) { served.pack(from, n, side.type, to); });
    return room;
  }
  void* as_output(bool equal, ServedCall& served) const {
    if (is_direct(equal)) return const_cast<void*>(side.memory);
    std::byte* const room = served.room(static_cast<std::size_t>(bytes()));
    each(room, [&](void* to, std::byte* from, MPI_Count n) { served.land(from, to, n, side.type); });
    return room;
  }
  void fill(Extents& extents) const {
    const bool directly = side.offsets && is_direct(false);
    fill_extents(extents, side.counts, directly ? &*side.offsets : nullptr, shape.size, last);
  }
};

Part part_of(const Side& side, bool is_one, int rank, int size) {
  return is_one ? Part{side, rank, rank + 1} : Part{side, 0, size};
}

}  // namespace

Side Blocks::own_in_memory(int rank) const {
  if (own().memory != MPI_IN_PLACE) return own();
  if (swaps()) return all();
  return {element(all().memory, all().begin_of(rank), shape_of(all().type)), all().counts[rank], all().type};
}

MPI_Count Blocks::weigh(const Seat& seat, Call& call) const {
  const int rank = seat.rank(), size = seat.size();
  const bool in_place = own().memory == MPI_IN_PLACE;
  if (root_ && (*root_ < 0 || *root_ >= size)) return not_ours;
  if (in_place && !holds_all(rank)) return not_ours;
  const Part whole = part_of(all(), false, rank, size), part = part_of(own(), !swaps(), rank, size);
  const MPI_Count bytes_of_all = holds_all(rank) ? whole.bytes() : 0, own_bytes = in_place ? 0 : part.bytes();
  if (bytes_of_all < 0 || own_bytes < 0) return not_ours;
  if (holds_all(rank) && !in_place && whole.block(rank) != part.block(rank)) return not_ours;
  call.collective = collective_;
  call.dtype = DType::uint8;
  call.root = root_.value_or(0);
  call.blind = is_blind();
  if (call.blind) return 0;
  const MPI_Count bytes = holds_all(rank) ? bytes_of_all : own_bytes * size;
  return too_short(all().counts, size, bytes) ? not_ours : within_limits(bytes);
}

void Blocks::fill(const Seat& seat, ServedCall& served) const {
  const int rank = seat.rank(), size = seat.size();
  const Part whole = part_of(all(), false, rank, size),
             part = part_of(own_in_memory(rank), !swaps(), rank, size);
  const bool equal = !is_blind() && all().counts.equal(size), sends_all = &all() == &send_;
  const Part &sent = sends_all ? whole : part, &received = sends_all ? part : whole;
  const bool sends = !sends_all || holds_all(rank), receives = sends_all || holds_all(rank);
  served.call.input = sends ? sent.as_input(equal, served) : nullptr;
  served.call.output = receives ? received.as_output(equal, served) : nullptr;
  if (equal) {
    served.call.count = part.block(rank);
  } else if (!is_blind()) {
    whole.fill(use_one(served, size));
  } else {
    Extents &in = served.extents(true, size), &out = served.extents(false, size);
    Extents &of_whole = sends_all ? in : out, &of_part = sends_all ? out : in;
    served.call.input_extents = &in;
    served.call.output_extents = &out;
    if (holds_all(rank)) whole.fill(of_whole);
    if (swaps()) {
      part.fill(of_part);
    } else {  // this rank knows no block but its own
      of_part.count[rank] = part.block(rank);
    }
  }
}

MPI_Count Bcast::weigh(const Seat& seat, Call& call) const {
  const Shape shape = shape_of(type);
  if (root < 0 || root >= seat.size() || !is_memory(buffer, shape)) return not_ours;
  call.collective = Collective::broadcast;
  call.dtype = DType::uint8;
  call.root = root;
  return within_limits(in_bytes(count, shape));
}

void Bcast::fill(const Seat& seat, ServedCall& served) const {
  const Shape shape = shape_of(type);
  served.call.count = static_cast<std::size_t>(count * shape.size);
  std::byte* const room = shape.plain ? nullptr : served.room(served.call.count);
  if (room && seat.rank() == root) {
    served.pack(buffer, count, type, room);
  } else if (room) {
    served.land(room, buffer, count, type);
  }
  served.call.input = served.call.output = room ? room : buffer;
}

MPI_Count Barrier::weigh(const Seat&, Call& call) const {
  call.collective = Collective::barrier;
  return 0;
}

}  // namespace ringreduce::mpi

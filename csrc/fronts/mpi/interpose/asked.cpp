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
Extents extents_of(const Counts& counts, const Offsets* offsets, MPI_Count unit, int size) {
  Extents extents;
  std::size_t end = 0;
  for (int rank = 0; rank < size; ++rank) {
    if (offsets && counts[rank] > 0) end = static_cast<std::size_t>((*offsets)[rank] * unit);
    extents.offset.push_back(end);
    extents.count.push_back(static_cast<std::size_t>(counts[rank] * unit));
    end += extents.count.back();
  }
  return extents;
}

void use_extents(ServedCall& served, Extents extents) {
  served.extents = std::move(extents);
  served.call.input_extents = served.call.output_extents = &served.extents;
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
  if (elements <= 0 || !kind || !reduces(*kind, op, call.op)) return not_ours;
  call.collective = collective;
  call.dtype = *kind->dtype;
  return elements * kind->shape.size;
}

}  // namespace

MPI_Count Reduce::weigh(const Seat& seat, Call& call) const {
  if (send == nullptr || (root && (*root < 0 || *root >= seat.size()))) return not_ours;
  const bool gets = !root || *root == seat.rank();
  if (gets ? receive == nullptr || receive == MPI_IN_PLACE : send == MPI_IN_PLACE) return not_ours;
  call.root = root.value_or(0);
  return weigh_reduction(root ? Collective::reduce : Collective::all_reduce, count, type, op, call);
}

void Reduce::fill(const Seat& seat, ServedCall& served) const {
  served.call.count = static_cast<std::size_t>(count);
  served.call.input = send == MPI_IN_PLACE ? receive : send;
  served.call.output = !root || *root == seat.rank() ? receive : nullptr;
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
  const MPI_Count own = counts[seat.rank()];
  served.call.input = send == MPI_IN_PLACE ? receive : send;
  served.call.output = receive;
  if (send == MPI_IN_PLACE) {
    // All ranks' input lies in the result's memory, but the engine expects this rank's result elsewhere: its
    // own block is in the middle. The result therefore goes through another buffer.
    std::byte* room = served.room(static_cast<std::size_t>(own) * size_of(served.call.dtype));
    served.call.output = room;
    served.land(room, receive, own, type);
  }
  if (counts.equal(seat.size())) {
    served.call.count = static_cast<std::size_t>(own);
  } else {
    use_extents(served, extents_of(counts, nullptr, 1, seat.size()));
  }
}

// --- functions that move bytes as they are ---------------------------------------------------------------

namespace {

MPI_Count in_bytes(MPI_Count count, const Shape& shape) {
  return shape.size < 0 || count < 0 ? not_ours : count * shape.size;
}

MPI_Count weigh_bytes(Collective collective, MPI_Count bytes, Call& call) {
  if (bytes <= 0 || bytes > most_moved) return not_ours;
  call.collective = collective;
  call.dtype = DType::uint8;
  return bytes;
}

void* element(void* memory, MPI_Count number, const Shape& shape) {
  return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(memory) +
                                 static_cast<std::uintptr_t>(number * shape.extent));
}

// The elements as bytes: in place, or packed.
const void* bytes_of(const void* from, MPI_Count count, MPI_Datatype type, ServedCall& served) {
  const Shape shape = shape_of(type);
  return shape.plain || count * shape.size == 0 ? from : served.packed(from, count, type);
}

// Whether, to this rank's knowledge, a rank sends as much as its block holds.
bool sends_block(const Allgather& asked, MPI_Count block) {
  if (asked.send == MPI_IN_PLACE) return true;
  const Shape shape = shape_of(asked.send_type);
  return in_bytes(asked.send_count, shape) == block && (block == 0 || is_memory(asked.send, shape));
}

// Whether the blocks lie in memory as the engine expects: equal ones without gaps, others in order.
bool in_order(const Allgather& asked, int size, bool equal) {
  if (!asked.offsets) return true;
  MPI_Count end = 0;
  for (int rank = 0; rank < size; ++rank) {
    if (asked.counts[rank] == 0) continue;
    const MPI_Count begin = asked.begin_of(rank);
    if (equal ? begin != end : begin < end) return false;
    end = begin + asked.counts[rank];
  }
  return true;
}

// Copies gathered blocks to their places.
void land_blocks(const Allgather& asked, const std::byte* from, int size, const Shape& shape,
                 ServedCall& served) {
  for (int rank = 0; rank < size; ++rank) {
    const MPI_Count count = asked.counts[rank];
    if (count > 0) served.land(from, element(asked.receive, asked.begin_of(rank), shape), count, asked.type);
    from += count * shape.size;
  }
}

}  // namespace

MPI_Count Allgather::weigh(const Seat& seat, Call& call) const {
  const Shape shape = shape_of(type);
  if ((offsets && !*offsets) || !is_memory(receive, shape)) return not_ours;
  const MPI_Count bytes = in_bytes(counts.sum(seat.size()), shape);
  if (bytes < 0 || !sends_block(*this, counts[seat.rank()] * shape.size)) return not_ours;
  return too_short(counts, seat.size(), bytes) ? not_ours : weigh_bytes(Collective::all_gather, bytes, call);
}

void Allgather::fill(const Seat& seat, ServedCall& served) const {
  const Shape shape = shape_of(type);
  const MPI_Count own = counts[seat.rank()];
  const bool equal = counts.equal(seat.size());
  const bool directly = shape.plain && in_order(*this, seat.size(), equal);
  served.call.input = send == MPI_IN_PLACE
                          ? bytes_of(element(receive, begin_of(seat.rank()), shape), own, type, served)
                          : bytes_of(send, send_count, send_type, served);
  served.call.output = receive;
  if (!directly) {
    std::byte* room = served.room(static_cast<std::size_t>(counts.sum(seat.size()) * shape.size));
    served.call.output = room;
    land_blocks(*this, room, seat.size(), shape, served);
  }
  if (equal) {
    served.call.count = static_cast<std::size_t>(own * shape.size);
  } else {
    use_extents(served, extents_of(counts, directly ? &*offsets : nullptr, shape.size, seat.size()));
  }
}

MPI_Count Bcast::weigh(const Seat& seat, Call& call) const {
  const Shape shape = shape_of(type);
  if (root < 0 || root >= seat.size() || !is_memory(buffer, shape)) return not_ours;
  call.root = root;
  return weigh_bytes(Collective::broadcast, in_bytes(count, shape), call);
}

void Bcast::fill(const Seat& seat, ServedCall& served) const {
  const Shape shape = shape_of(type);
  const auto bytes = static_cast<std::size_t>(count * shape.size);
  served.call.count = bytes;
  if (shape.plain) {
    served.call.output = buffer;
  } else if (seat.rank() == root) {
    served.call.output = const_cast<std::byte*>(served.packed(buffer, count, type));
  } else {
    std::byte* room = served.room(bytes);
    served.call.output = room;
    served.land(room, buffer, count, type);
  }
  served.call.input = served.call.output;
}

MPI_Count Barrier::weigh(const Seat&, Call& call) const {
  call.collective = Collective::barrier;
  return 0;
}

}  // namespace ringreduce::mpi

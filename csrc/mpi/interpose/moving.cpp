// The functions that move bytes as they are, and the barrier.
#include "mpi/interpose/asked.h"

namespace ringreduce::mpi {
namespace {

// A datatype of the program's own may hold addresses, with MPI_BOTTOM for the buffer.
bool is_memory(const void* buffer, const Shape& shape) {
  return buffer != MPI_IN_PLACE && (buffer != nullptr || !shape.plain);
}

MPI_Count weigh_bytes(Collective collective, MPI_Count bytes, Call& call) {
  if (bytes <= 0 || bytes > most_moved) return not_ours;
  call.collective = collective;
  call.dtype = DType::uint8;
  return bytes;
}

MPI_Count in_bytes(MPI_Count count, const Shape& shape) {
  return shape.size < 0 || count < 0 ? not_ours : count * shape.size;
}

const void* element(const void* memory, MPI_Count number, const Shape& shape) {
  return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(memory) +
                                       static_cast<std::uintptr_t>(number * shape.extent));
}
void* element(void* memory, MPI_Count number, const Shape& shape) {
  return const_cast<void*>(element(static_cast<const void*>(memory), number, shape));
}

// These elements as they travel: where they are, or packed.
const void* bytes_of(const void* from, MPI_Count count, MPI_Datatype type, std::size_t bytes, MPI_Comm comm,
                     ServedCall& served) {
  return shape_of(type).plain || bytes == 0 ? from : served.packed(from, count, type, bytes, comm);
}

// Whether what a rank sends is as long as its block, so far as that can be seen here.
bool sends_block(const void* send, MPI_Count count, MPI_Datatype type, MPI_Count block) {
  if (send == MPI_IN_PLACE) return true;
  const Shape shape = shape_of(type);
  return in_bytes(count, shape) == block && (block == 0 || is_memory(send, shape));
}

// Whether the blocks lie in memory as the engine has them: equal ones without gaps, others in order.
bool in_order(const Allgatherv& asked, int size, bool equal) {
  MPI_Count end = 0;
  for (int rank = 0; rank < size; ++rank) {
    if (asked.counts[rank] == 0) continue;
    if (equal ? asked.offsets[rank] != end : asked.offsets[rank] < end) return false;
    end = asked.offsets[rank] + asked.counts[rank];
  }
  return true;
}

// Where the blocks go: to their places, or one behind the other.
void spread(const Allgatherv& asked, const Seat& seat, const Shape& shape, bool in_place, Extents& extents) {
  std::size_t end = 0;
  for (int rank = 0; rank < seat.size(); ++rank) {
    const auto bytes = static_cast<std::size_t>(asked.counts[rank] * shape.size);
    if (in_place && bytes > 0) end = static_cast<std::size_t>(asked.offsets[rank] * shape.size);
    extents.offset.push_back(end);
    extents.count.push_back(bytes);
    end += bytes;
  }
}

}  // namespace

MPI_Count Bcast::weigh(const Seat& seat, Call& call) const {
  const Shape shape = shape_of(type);
  if (root < 0 || root >= seat.size() || !is_memory(buffer, shape)) return not_ours;
  return weigh_bytes(Collective::broadcast, in_bytes(count, shape), call);
}

void Bcast::fill(const Seat& seat, ServedCall& served) const {
  const Shape shape = shape_of(type);
  const auto bytes = static_cast<std::size_t>(count * shape.size);
  served.call.count = bytes;
  served.call.root = root;
  if (shape.plain) {
    served.call.input = served.call.output = buffer;
  } else if (seat.rank() == root) {
    const std::byte* packed = served.packed(buffer, count, type, bytes, seat.comm());
    served.call.input = served.call.output = const_cast<std::byte*>(packed);
  } else {
    std::byte* room = served.room(bytes);
    served.call.input = served.call.output = room;
    served.land(room, bytes, buffer, count, type, seat.comm());
  }
}

MPI_Count Allgather::weigh(const Seat& seat, Call& call) const {
  const Shape shape = shape_of(type);
  const MPI_Count block = in_bytes(count, shape);
  if (block < 0 || !is_memory(receive, shape) || !sends_block(send, send_count, send_type, block)) {
    return not_ours;
  }
  return weigh_bytes(Collective::all_gather, block * seat.size(), call);
}

void Allgather::fill(const Seat& seat, ServedCall& served) const {
  const Shape shape = shape_of(type);
  const auto block = static_cast<std::size_t>(count * shape.size);
  served.call.count = block;
  served.call.input =
      send == MPI_IN_PLACE
          ? bytes_of(element(receive, count * seat.rank(), shape), count, type, block, seat.comm(), served)
          : bytes_of(send, send_count, send_type, block, seat.comm(), served);
  served.call.output = receive;
  if (shape.plain) return;
  std::byte* room = served.room(block * seat.size());
  served.call.output = room;
  served.land(room, block * seat.size(), receive, count * seat.size(), type, seat.comm());
}

MPI_Count Allgatherv::weigh(const Seat& seat, Call& call) const {
  const Shape shape = shape_of(type);
  if (!counts || !offsets || !is_memory(receive, shape)) return not_ours;
  MPI_Count bytes = 0;
  for (int rank = 0; rank < seat.size(); ++rank) {
    const MPI_Count block = in_bytes(counts[rank], shape);
    if (block < 0) return not_ours;
    bytes += block;
  }
  if (!sends_block(send, send_count, send_type, counts[seat.rank()] * shape.size)) return not_ours;
  if (too_short(counts, seat.size(), bytes)) return not_ours;
  return weigh_bytes(Collective::all_gather, bytes, call);
}

void Allgatherv::fill(const Seat& seat, ServedCall& served) const {
  const Shape shape = shape_of(type);
  const bool equal = all_equal(counts, seat.size());
  const bool directly = shape.plain && in_order(*this, seat.size(), equal);
  const MPI_Count own = counts[seat.rank()];
  const auto own_bytes = static_cast<std::size_t>(own * shape.size);
  served.call.input =
      send == MPI_IN_PLACE
          ? bytes_of(element(receive, offsets[seat.rank()], shape), own, type, own_bytes, seat.comm(), served)
          : bytes_of(send, send_count, send_type, own_bytes, seat.comm(), served);
  served.call.output = receive;
  if (equal) served.call.count = own_bytes;
  if (equal && directly) return;
  spread(*this, seat, shape, directly, served.extents);
  if (!equal) served.call.input_extents = served.call.output_extents = &served.extents;
  if (directly) return;
  std::byte* room = served.room(served.extents.offset.back() + served.extents.count.back());
  served.call.output = room;
  for (int rank = 0; rank < seat.size(); ++rank) {
    if (served.extents.count[rank] == 0) continue;
    served.land(room + served.extents.offset[rank], served.extents.count[rank],
                element(receive, offsets[rank], shape), counts[rank], type, seat.comm());
  }
}

MPI_Count Barrier::weigh(const Seat&, Call& call) const {
  call.collective = Collective::barrier;
  return 0;
}

void Barrier::fill(const Seat&, ServedCall&) const {}

}  // namespace ringreduce::mpi

// The functions that reduce.
#include <algorithm>

#include "mpi/interpose/asked.h"

namespace ringreduce::mpi {
namespace {

bool is_memory(const void* buffer) {
  return buffer != nullptr && buffer != MPI_IN_PLACE;
}

// Of the elements of all ranks' blocks together.
MPI_Count weigh_reduction(Collective collective, MPI_Count elements, MPI_Datatype type, MPI_Op op,
                          Call& call) {
  const Kind* kind = predefined(type);
  if (elements <= 0 || !kind || !reduces(*kind, op, call.op)) return not_ours;
  call.collective = collective;
  call.dtype = *kind->dtype;
  return elements * static_cast<MPI_Count>(kind->size);
}

// The input of all ranks lies where the result goes, which is not where the engine would have it: its own
// block is somewhere in the middle. So the result makes a detour.
void scatter(const void* send, void* receive, std::size_t own_bytes, ServedCall& served) {
  served.call.input = send == MPI_IN_PLACE ? receive : send;
  served.call.output = receive;
  if (send != MPI_IN_PLACE) return;
  std::byte* room = served.room(own_bytes);
  served.call.output = room;
  served.land(room, own_bytes, receive);
}

}  // namespace

MPI_Count Allreduce::weigh(const Seat&, Call& call) const {
  if (send == nullptr || !is_memory(receive)) return not_ours;
  return weigh_reduction(Collective::all_reduce, count, type, op, call);
}

void Allreduce::fill(const Seat&, ServedCall& served) const {
  served.call.count = static_cast<std::size_t>(count);
  served.call.input = send == MPI_IN_PLACE ? receive : send;
  served.call.output = receive;
}

MPI_Count Reduce::weigh(const Seat& seat, Call& call) const {
  const bool at_root = seat.rank() == root;
  if (root < 0 || root >= seat.size() || send == nullptr) return not_ours;
  if (at_root ? !is_memory(receive) : send == MPI_IN_PLACE) return not_ours;
  return weigh_reduction(Collective::reduce, count, type, op, call);
}

void Reduce::fill(const Seat& seat, ServedCall& served) const {
  served.call.count = static_cast<std::size_t>(count);
  served.call.root = root;
  served.call.input = send == MPI_IN_PLACE ? receive : send;
  served.call.output = seat.rank() == root ? receive : nullptr;
}

MPI_Count ReduceScatterBlock::weigh(const Seat& seat, Call& call) const {
  if (send == nullptr || !is_memory(receive)) return not_ours;
  return weigh_reduction(Collective::reduce_scatter, count * seat.size(), type, op, call);
}

void ReduceScatterBlock::fill(const Seat&, ServedCall& served) const {
  served.call.count = static_cast<std::size_t>(count);
  scatter(send, receive, served.call.count * size_of(served.call.dtype), served);
}

MPI_Count ReduceScatter::weigh(const Seat& seat, Call& call) const {
  if (!counts || send == nullptr || receive == MPI_IN_PLACE) return not_ours;
  MPI_Count elements = 0;
  for (int rank = 0; rank < seat.size(); ++rank) {
    if (counts[rank] < 0) return not_ours;
    elements += counts[rank];
  }
  if (receive == nullptr && (counts[seat.rank()] > 0 || send == MPI_IN_PLACE)) return not_ours;
  const MPI_Count bytes = weigh_reduction(Collective::reduce_scatter, elements, type, op, call);
  return too_short(counts, seat.size(), bytes) ? not_ours : bytes;
}

void ReduceScatter::fill(const Seat& seat, ServedCall& served) const {
  const std::size_t own_bytes = static_cast<std::size_t>(counts[seat.rank()]) * size_of(served.call.dtype);
  scatter(send, receive, own_bytes, served);
  if (all_equal(counts, seat.size())) {
    served.call.count = static_cast<std::size_t>(counts[0]);
    return;
  }
  std::size_t offset = 0;
  for (int rank = 0; rank < seat.size(); ++rank) {
    const auto count = static_cast<std::size_t>(counts[rank]);
    served.extents.offset.push_back(offset);
    served.extents.count.push_back(count);
    offset += count;
  }
  served.call.input_extents = served.call.output_extents = &served.extents;
}

}  // namespace ringreduce::mpi

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
  call.dtype = kind->dtype;
  return elements * static_cast<MPI_Count>(kind->size);
}

// The input of all ranks lies where the result goes, which is not where the engine would have it: its own
// block is somewhere in the middle. So the result makes a detour.
void scatter(const void* send, void* receive, std::size_t own_bytes, Job& job) {
  job.call.input = send == MPI_IN_PLACE ? receive : send;
  job.call.output = receive;
  if (send != MPI_IN_PLACE) return;
  std::byte* room = job.room(own_bytes);
  job.call.output = room;
  job.land(room, own_bytes, receive);
}

}  // namespace

MPI_Count Allreduce::weigh(const Seat&, Call& call) const {
  if (send == nullptr || !is_memory(receive)) return not_ours;
  return weigh_reduction(Collective::all_reduce, count, type, op, call);
}

void Allreduce::fill(const Seat&, Job& job) const {
  job.call.count = static_cast<std::size_t>(count);
  job.call.input = send == MPI_IN_PLACE ? receive : send;
  job.call.output = receive;
}

MPI_Count Reduce::weigh(const Seat& seat, Call& call) const {
  const bool at_root = seat.rank() == root;
  if (root < 0 || root >= seat.size() || send == nullptr) return not_ours;
  if (at_root ? !is_memory(receive) : send == MPI_IN_PLACE) return not_ours;
  return weigh_reduction(Collective::reduce, count, type, op, call);
}

void Reduce::fill(const Seat& seat, Job& job) const {
  job.call.count = static_cast<std::size_t>(count);
  job.call.root = root;
  job.call.input = send == MPI_IN_PLACE ? receive : send;
  job.call.output = seat.rank() == root ? receive : nullptr;
}

MPI_Count ReduceScatterBlock::weigh(const Seat& seat, Call& call) const {
  if (send == nullptr || !is_memory(receive)) return not_ours;
  return weigh_reduction(Collective::reduce_scatter, count * seat.size(), type, op, call);
}

void ReduceScatterBlock::fill(const Seat&, Job& job) const {
  job.call.count = static_cast<std::size_t>(count);
  scatter(send, receive, job.call.count * size_of(job.call.dtype), job);
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

void ReduceScatter::fill(const Seat& seat, Job& job) const {
  const std::size_t own_bytes = static_cast<std::size_t>(counts[seat.rank()]) * size_of(job.call.dtype);
  scatter(send, receive, own_bytes, job);
  if (all_equal(counts, seat.size())) {
    job.call.count = static_cast<std::size_t>(counts[0]);
    return;
  }
  std::size_t offset = 0;
  for (int rank = 0; rank < seat.size(); ++rank) {
    const auto count = static_cast<std::size_t>(counts[rank]);
    job.extents.offset.push_back(offset);
    job.extents.count.push_back(count);
    offset += count;
  }
  job.call.input_extents = job.call.output_extents = &job.extents;
}

}  // namespace ringreduce::mpi

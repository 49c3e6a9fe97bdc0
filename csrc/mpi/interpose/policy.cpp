#include "mpi/interpose/policy.h"

namespace ringreduce::mpi {
namespace {

constexpr std::size_t KiB = 1024, MiB = 1024 * KiB, no_end = std::size_t{1} << 62;
constexpr Library library = Library::RINGREDUCE_MPI_LIBRARY;

// Sizes that are served, from powers of two to below others (0: from the first byte, and where there is
// none). What fits no row is handed on.
struct Row {
  Library library;
  Function function;
  bool crowded;  // more ranks than cores
  std::size_t from, to;
};

using F = Function;
using L = Library;
constexpr Row table[] = {
    // measured on 2 ranks, by bench/interposer.py, and taken for more ranks, too
    {L::openmpi, F::allreduce, false, 0, no_end},
    {L::openmpi, F::reduce, false, 512, no_end},
    {L::openmpi, F::reduce_scatter, false, 0, no_end},
    {L::openmpi, F::reduce_scatter_block, false, 0, no_end},
    {L::openmpi, F::allgather, false, KiB, no_end},
    {L::openmpi, F::allgatherv, false, KiB, no_end},
    {L::openmpi, F::bcast, false, 512, 32 * MiB},
    {L::mpich, F::allreduce, false, 0, no_end},
    {L::mpich, F::reduce, false, 0, no_end},
    {L::mpich, F::reduce_scatter, false, 0, no_end},
    {L::mpich, F::reduce_scatter_block, false, 0, no_end},
    {L::mpich, F::allgather, false, 0, no_end},
    {L::mpich, F::allgatherv, false, 0, no_end},
    {L::mpich, F::bcast, false, 0, 512},
    {L::mpich, F::bcast, false, 4 * KiB, no_end},
    {L::mpich, F::barrier, false, 0, no_end},
    // measured on 4 ranks on two cores
    {L::openmpi, F::allreduce, true, 0, no_end},
    {L::openmpi, F::reduce, true, 256, no_end},
    {L::openmpi, F::reduce_scatter, true, 0, no_end},
    {L::openmpi, F::reduce_scatter_block, true, 0, no_end},
    {L::openmpi, F::allgather, true, 0, no_end},
    {L::openmpi, F::allgatherv, true, 0, no_end},
    {L::openmpi, F::bcast, true, 256, no_end},
    {L::openmpi, F::barrier, true, 0, no_end},
    {L::mpich, F::allreduce, true, 0, no_end},
    {L::mpich, F::reduce, true, 0, no_end},
    {L::mpich, F::reduce_scatter, true, 0, no_end},
    {L::mpich, F::reduce_scatter_block, true, 0, no_end},
    {L::mpich, F::allgather, true, 0, no_end},
    {L::mpich, F::allgatherv, true, 0, no_end},
    {L::mpich, F::bcast, true, 0, no_end},
    {L::mpich, F::barrier, true, 0, no_end},
    // not measured: what is far ahead with both
    {L::other, F::allreduce, false, 64 * KiB, no_end},
    {L::other, F::reduce_scatter, false, 64 * KiB, no_end},
    {L::other, F::reduce_scatter_block, false, 64 * KiB, no_end},
    {L::other, F::allreduce, true, 64 * KiB, no_end},
    {L::other, F::reduce_scatter, true, 64 * KiB, no_end},
    {L::other, F::reduce_scatter_block, true, 64 * KiB, no_end},
};

// From the number of bits of `from` on, up to that of the last size below `to`.
std::uint64_t mask(std::size_t from, std::size_t to) {
  const std::uint64_t up_to = (std::uint64_t{1} << std::bit_width(to)) - 1;
  const std::uint64_t below = (std::uint64_t{1} << std::bit_width(from)) - 1;
  return up_to & ~below;
}

}  // namespace

Policy::Policy(bool crowded, bool everything) {
  for (auto& functions : sizes_) functions.fill(everything ? ~std::uint64_t{0} : 0);
  for (const Row& row : table) {
    if (row.library != library || row.crowded != crowded) continue;
    sizes_[false][static_cast<int>(row.function)] |= mask(row.from, row.to);
  }
}

}  // namespace ringreduce::mpi

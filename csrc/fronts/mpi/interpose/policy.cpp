#include "fronts/mpi/interpose/policy.h"

namespace ringreduce::mpi {
namespace {

constexpr std::size_t KiB = 1024, MiB = 1024 * KiB, no_end = std::size_t{1} << 62;
constexpr Library library = Library::RINGREDUCE_MPI_LIBRARY;

// Sizes from one power of two to below another (0: from the first byte, or no upper limit).
struct Sizes {
  std::size_t from, to;
};
constexpr Sizes all{0, no_end}, none{0, 0}, large{64 * KiB, no_end};

// The sizes that are served, if each rank has a core, and if there are more ranks than cores.
struct Row {
  Library library;
  Function function;
  Sizes uncrowded, crowded;
};

using F = Function;
using L = Library;
constexpr Row table[] = {
    // measured by bench/peers/interposer.py on 2 ranks, also used for more ranks; and on 4 ranks on two cores
    {L::openmpi, F::allreduce, all, all},
    // Small ones, on shared cores: up to 0.4 us slower by themselves, but 2.5 us faster beside served
    // barriers.
    {L::openmpi, F::reduce, {512, no_end}, all},
    {L::openmpi, F::scan, {512, no_end}, all},
    {L::openmpi, F::exscan, {512, no_end}, all},
    {L::openmpi, F::reduce_scatter, all, all},
    {L::openmpi, F::reduce_scatter_block, all, all},
    {L::openmpi, F::allgather, {KiB, no_end}, all},
    {L::openmpi, F::allgatherv, {KiB, no_end}, all},
    {L::openmpi, F::bcast, {512, 32 * MiB}, all},
    {L::openmpi, F::gather, {KiB, no_end}, all},
    {L::openmpi, F::scatter, {KiB, no_end}, all},
    {L::openmpi, F::alltoall, {KiB, no_end}, all},
    // At any size or none: below 1 KiB 0.1 us slower, beyond that a quarter to 0.8 of the time are saved.
    {L::openmpi, F::gatherv, all, all},
    {L::openmpi, F::scatterv, all, all},
    {L::openmpi, F::alltoallv, all, all},
    {L::openmpi, F::barrier, none, all},
    {L::mpich, F::allreduce, all, all},
    {L::mpich, F::reduce, all, all},
    {L::mpich, F::scan, all, all},
    {L::mpich, F::exscan, all, all},
    {L::mpich, F::reduce_scatter, all, all},
    {L::mpich, F::reduce_scatter_block, all, all},
    {L::mpich, F::allgather, all, all},
    {L::mpich, F::allgatherv, all, all},
    {L::mpich, F::bcast, {0, 4 * KiB}, all},
    {L::mpich, F::bcast, {512 * KiB, no_end}, all},
    {L::mpich, F::gather, all, all},
    {L::mpich, F::gatherv, all, all},
    {L::mpich, F::scatter, all, all},
    {L::mpich, F::scatterv, all, all},
    {L::mpich, F::alltoall, all, all},
    {L::mpich, F::alltoallv, all, all},
    {L::mpich, F::barrier, all, all},
    // measured under Intel MPI, on 2 ranks
    {L::other, F::scan, all, large},
    {L::other, F::exscan, all, large},
    {L::other, F::scatter, large, large},
    {L::other, F::alltoall, {0, 512 * KiB}, large},
    {L::other, F::alltoall, {MiB, no_end}, large},
    {L::other, F::alltoallv, all, none},
    // not measured: sizes at which both libraries are far behind
    {L::other, F::allreduce, large, large},
    {L::other, F::reduce_scatter, large, large},
    {L::other, F::reduce_scatter_block, large, large},
};

// A bit for each bit length, from that of `from` to that of the last size below `to`.
std::uint64_t mask(const Sizes& sizes) {
  const std::uint64_t up_to = (std::uint64_t{1} << std::bit_width(sizes.to)) - 1;
  const std::uint64_t below = (std::uint64_t{1} << std::bit_width(sizes.from)) - 1;
  return up_to & ~below;
}

}  // namespace

Policy::Policy(bool crowded, bool everything) {
  for (auto& functions : sizes_) functions.fill(everything ? ~std::uint64_t{0} : 0);
  for (const Row& row : table) {
    if (row.library != library) continue;
    sizes_[false][static_cast<int>(row.function)] |= mask(crowded ? row.crowded : row.uncrowded);
  }
}

}  // namespace ringreduce::mpi

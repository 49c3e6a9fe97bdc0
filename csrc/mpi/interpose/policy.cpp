#include "mpi/interpose/policy.h"

namespace ringreduce::mpi {
namespace {

constexpr std::size_t KiB = 1024, MiB = 1024 * KiB, no_end = std::size_t{1} << 62;
constexpr int any_world = 1 << 30;
constexpr Library library = Library::RINGREDUCE_MPI_LIBRARY;

// Sizes that are served, from powers of two to below others (0: from the first byte, and where there is
// none). What fits no row is handed on.
struct Row {
  Library library;
  Function function;
  bool in_background;
  int min_world, max_world;
  bool crowded;  // more ranks than cores
  std::size_t from, to;
};

using F = Function;
constexpr Row table[] = {
    {library, F::allreduce, false, 2, any_world, false, 0, no_end},
    {library, F::allreduce, false, 2, any_world, true, 0, no_end},
};

bool fits(const Row& row, int world, bool crowded) {
  return row.library == library && world >= row.min_world && world <= row.max_world && row.crowded == crowded;
}

// From the number of bits of `from` on, up to that of the last size below `to`.
std::uint64_t mask(std::size_t from, std::size_t to) {
  const std::uint64_t up_to = (std::uint64_t{1} << std::bit_width(to)) - 1;
  const std::uint64_t below = (std::uint64_t{1} << std::bit_width(from)) - 1;
  return up_to & ~below;
}

}  // namespace

Policy::Policy(int world, bool crowded, bool everything) {
  for (auto& functions : sizes_) functions.fill(everything ? ~std::uint64_t{0} : 0);
  for (const Row& row : table) {
    if (!fits(row, world, crowded)) continue;
    sizes_[row.in_background][static_cast<int>(row.function)] |= mask(row.from, row.to);
  }
}

}  // namespace ringreduce::mpi

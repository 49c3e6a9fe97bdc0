#include "mpi/interpose/policy.h"

#include "mpi/interpose/settings.h"

namespace ringreduce::mpi {
namespace {

constexpr std::size_t KiB = 1024, MiB = 1024 * KiB, all = ~std::size_t{0};
constexpr int any_world = 1 << 30;
constexpr Library library = Library::RINGREDUCE_MPI_LIBRARY;

// The first row that fits is taken; what no row fits is handed on.
struct Row {
  Library library;
  Function function;
  bool in_background;
  int max_world;  // fits worlds up to this one
  int crowded;    // 1: only where ranks outnumber cores, 0: only where they do not, -1: either
  std::size_t from, to;
};

using F = Function;
constexpr Row table[] = {
    {library, F::allreduce, false, any_world, -1, 0, all},
    {library, F::reduce, false, any_world, -1, 0, all},
    {library, F::reduce_scatter, false, any_world, -1, 0, all},
    {library, F::reduce_scatter_block, false, any_world, -1, 0, all},
    {library, F::allgather, false, any_world, -1, 0, all},
    {library, F::allgatherv, false, any_world, -1, 0, all},
    {library, F::bcast, false, any_world, -1, 0, all},
    {library, F::barrier, false, any_world, -1, 0, all},
};

bool fits(const Row& row, Function function, bool in_background, int world, bool crowded) {
  return row.library == library && row.function == function && row.in_background == in_background &&
         world <= row.max_world && (row.crowded < 0 || (row.crowded == 1) == crowded);
}

}  // namespace

Policy::Policy(int world, bool crowded, bool everything) {
  for (const bool in_background : {false, true}) {
    for (int function = 0; function < function_count; ++function) {
      Range& range = ranges_[in_background][function];
      if (everything) range = {0, all};
      for (const Row& row : table) {
        if (everything || !fits(row, static_cast<Function>(function), in_background, world, crowded))
          continue;
        range = {row.from, row.to};
        break;
      }
    }
  }
}

}  // namespace ringreduce::mpi

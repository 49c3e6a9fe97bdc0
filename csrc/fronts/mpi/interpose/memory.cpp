// Memory that programs ask MPI for: peers on this host reach it in place, so that collectives need no copies.
#include <mpi.h>

#include <cstddef>

#include "fronts/mpi/interpose/settings.h"
#include "fronts/shared/group.h"

namespace {

constexpr MPI_Aint least = 64 << 10;  // bytes; shorter messages are copied anyway

}  // namespace

// A program that passes hints wants the library's own memory.
extern "C" [[gnu::visibility("default")]] int MPI_Alloc_mem(MPI_Aint size, MPI_Info info, void* result) {
  using namespace ringreduce::mpi;
  const bool ours = size >= least && info == MPI_INFO_NULL && mode() != Mode::off;
  void* const block = ours ? ringreduce::allocate_block(static_cast<std::size_t>(size), true) : nullptr;
  if (!block) return PMPI_Alloc_mem(size, info, result);
  *static_cast<void**>(result) = block;
  return MPI_SUCCESS;
}

extern "C" [[gnu::visibility("default")]] int MPI_Free_mem(void* memory) {
  if (memory && ringreduce::free_block(memory)) return MPI_SUCCESS;
  return PMPI_Free_mem(memory);
}

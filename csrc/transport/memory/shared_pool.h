// Blocks of shared memory for programs that allocate and free often: a cache over the shared heap.
#pragma once

#include <cstddef>

namespace ringreduce::shared_pool {

// Memory on a page boundary that peers of this host reach in place; its contents are undefined. Null where
// there is no more. Blocks are cut from a few large arrays, as each array takes a file descriptor.
void* allocate(std::size_t bytes);

// Gives a block back; false if `memory` is not the start of one. Arrays that are free as a whole go back to
// the system, except for some that the next allocations use.
bool free(void* memory);

// A forked child has a private copy of all blocks, as it has of other memory: fork() returns when the copy is
// made. Its own blocks are new.

struct Usage {
  std::size_t arrays, bytes, live;
};
Usage usage();

}  // namespace ringreduce::shared_pool

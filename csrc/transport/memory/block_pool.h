// Large blocks of memory for programs that allocate and free often, and communicate some of them: a cache.
//
// A block is private memory at first, as malloc's is: a fork copies nothing. Once collectives have used it
// repeatedly, it moves to shared memory, so that peers of this host reach it in place. Its addresses and
// contents stay. What has been shared is used again for later blocks, and does not move a second time.
#pragma once

#include <cstddef>
#include <optional>

#include "transport/memory/channel.h"
#include "transport/memory/shared_heap.h"

namespace ringreduce::block_pool {

enum class Kind {
  undefined,  // contents are undefined
  zeroed,
  shared,  // peers reach it from the beginning; contents are undefined
};

// Memory on a page boundary. Returns null where there is none, or none of the kind.
void* allocate(std::size_t bytes, Kind kind);

// Gives a block back; false if `memory` is not the start of one. An eighth more than the process has used
// within the last ten seconds is kept for the next blocks, or 64 MiB more than it uses.
bool free(void* memory);

// The bytes that allocate() was asked for, if `memory` is the start of a block.
std::optional<std::size_t> size_of(const void* memory);

// Where peers find [data, data + bytes), if they can.
std::optional<Location> locate(const void* data, std::size_t bytes);

// The whole block or array of shared_heap that [data, data + bytes) lies in, if any. Its pages stay until
// page_changes says otherwise.
std::optional<Extent> extent(const void* data, std::size_t bytes);

// The same as locate(), for a collective that is about to use this memory: its caller does not let other
// threads write it until it returns. If the memory is the whole of a block that was used before, the block
// moves.
std::optional<Location> reach(const void* data, std::size_t bytes);

// A forked child has a private copy of all blocks: fork() returns when what was shared is copied.

}  // namespace ringreduce::block_pool

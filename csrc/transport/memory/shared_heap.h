// Arrays in shared memory: memory of this process that its peers on the same host may map, so that a
// collective needs no staging copy. Nothing has a name in a file system, so nothing can be left behind.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include "transport/interface/descriptor.h"
#include "transport/memory/channel.h"
#include "transport/memory/pages.h"

namespace ringreduce {

// Anonymous shared memory: a memfd and its mapping. Other processes of the same user reach it through
// /proc/<pid>/fd/<fd> while both live.
class SharedMemory {
 public:
  // Makes new zeroed memory, with huge pages if it is large and the system grants them. Throws
  // NoSharedMemory. If the system refuses memfd_create, as some sandboxes do, other processes cannot open the
  // memory, and it has no fd.
  static std::shared_ptr<SharedMemory> make(std::size_t bytes, const char* name = "ringreduce");
  // Maps a peer's memory. Throws Error if it cannot be opened or is smaller than `least` bytes.
  static std::shared_ptr<SharedMemory> open(pid_t pid, int fd, std::size_t least);
  SharedMemory() = default;
  SharedMemory(const SharedMemory&) = delete;
  ~SharedMemory();

  Descriptor fd;  // none for a peer's memory
  std::byte* base = nullptr;
  std::size_t bytes = 0;

 private:
  void map(int file);
};

// Memory of one allocation.
struct Extent {
  const std::byte* begin = nullptr;
  std::size_t bytes = 0;
};

// The process's arrays. Thread-safe.
namespace shared_heap {

// Zeroed, 64-byte aligned shared memory. Throws std::bad_alloc.
void* allocate(std::size_t bytes);
// Returns it to the system at once, despite peers' mappings.
void free(void* memory);
// Distinguishes arrays that have had the same descriptor.
std::uint32_t number_of_new_array();
// Where peers find [data, data + bytes), if it lies in an array.
std::optional<Location> locate(const void* data, std::size_t bytes);
// The whole of that array.
std::optional<Extent> extent(const void* data, std::size_t bytes);

}  // namespace shared_heap

// A peer process's arrays, mapped when first needed.
class PeerHeap {
 public:
  // Throws Error if it cannot be opened.
  std::byte* resolve(pid_t pid, Location place);

 private:
  struct Mapping {
    std::shared_ptr<SharedMemory> memory;
    std::uint32_t array = 0;
  };
  std::unordered_map<int, Mapping> mapped_;  // by descriptor
  std::mutex mutex_;  // collectives and point-to-point messages use it at the same time
};

}  // namespace ringreduce

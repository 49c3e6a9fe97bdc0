// Files in memory, mapped by the process that has made them and by others.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringreduce::emulated {

// What another process needs to find one. Plain bytes without gaps.
struct Shared {
  std::uint64_t mark;
  std::int32_t process, file;
  std::uint64_t inode;  // the number of a file may be another's by then
  std::uint64_t bytes;
  std::int32_t device, unused;
  bool operator==(const Shared&) const = default;
};

// They throw std::runtime_error, which says what the system has said.
int make_file(std::size_t bytes);
void* map_file(int file, std::size_t bytes);  // closes the file if it fails
void unmap_file(void* memory, std::size_t bytes);
Shared shared_file(int file, std::size_t bytes, int device);
// Not in the process that has made it: CUDA refuses that.
void* map_shared(const Shared& shared);

}  // namespace ringreduce::emulated

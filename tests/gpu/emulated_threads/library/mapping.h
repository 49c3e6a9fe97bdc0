// Files in memory, mapped by the process that has made them and by others.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ringreduce::emulated {

inline constexpr std::size_t page = 4096;

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
// At an address that is reserved for it, if not null. Closes the file if it fails.
void* map_file(int file, std::size_t bytes, void* at = nullptr);
void* reserve(std::size_t bytes);
void unmap_file(void* memory, std::size_t bytes);
Shared shared_file(int file, std::size_t bytes, int device);
// Not in the process that has made it: CUDA refuses that.
void* map_shared(const Shared& shared, void* at = nullptr);

}  // namespace ringreduce::emulated

// Reused memory for messages in flight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ringreduce {

// Its bytes begin on a cache line of their own.
struct Buffer {
  std::byte* data = nullptr;
  std::size_t room = 0;
  int users = 0;
};

// Where incoming bytes go: into a buffer of ours, or the caller's memory.
struct Landing {
  std::byte* at = nullptr;
  Buffer* buffer = nullptr;
};

// Not thread-safe.
class Pool {
 public:
  Pool() = default;
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Returns a buffer for one user. Throws std::bad_alloc.
  Buffer* take(std::size_t bytes);
  void release(Buffer* buffer);
  // `here`: a buffer that has them already, or null.
  Landing room(std::size_t bytes, Buffer* here = nullptr) {
    if (bytes == 0) return {};
    Buffer* buffer = here ? here : take(bytes);
    return {buffer->data, buffer};
  }
  // Bytes held, whether in use or not.
  std::size_t bytes() const { return held_; }

 private:
  static constexpr std::size_t smallest = 4096;
  static constexpr std::size_t most_spare = std::size_t{16} << 20;  // bytes kept for reuse

  struct Spare {
    std::vector<Buffer*> buffers;
    std::uint64_t used = 0;  // when one of them was, in the order of all uses
  };
  void destroy(Buffer* buffer);
  // Of the size that has not been used for longest.
  void destroy_one();

  std::vector<Spare> spare_;  // by the power of two of their capacity
  std::size_t held_ = 0, spare_bytes_ = 0;
  std::uint64_t uses_ = 0;
};

}  // namespace ringreduce

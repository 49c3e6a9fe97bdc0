#include "reduce/user_op.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "reduce/reduce.h"

namespace ringreduce {
namespace {

// An operator in Python takes microseconds for each call, so blocks are long.
constexpr std::size_t block_bytes = std::size_t{64} << 10;

struct alignas(64) Line {
  std::byte bytes[64];
};

// Room for so many bytes, in this thread, which stays.
std::byte* room(std::vector<Line>& lines, std::size_t bytes) {
  if (lines.size() * sizeof(Line) < bytes) lines.resize((bytes + sizeof(Line) - 1) / sizeof(Line));
  return reinterpret_cast<std::byte*>(lines.data());
}

bool is_aligned(const void* memory, std::size_t alignment) {
  return reinterpret_cast<std::uintptr_t>(memory) % alignment == 0;
}

bool overlap(const void* one, const void* other, std::size_t bytes) {
  const auto a = reinterpret_cast<std::uintptr_t>(one), b = reinterpret_cast<std::uintptr_t>(other);
  return a < b + bytes && b < a + bytes;
}

}  // namespace

// From the last source to the first, because the operator leaves its result on the right: s0 op (s1 op s2).
// The result is computed at the first destination, unless a source lies there that is read later.
void combine_by(const UserOp& op, DType dtype, void* const* destinations, int destination_count,
                const void* const* sources, int source_count, std::size_t count) {
  static thread_local std::vector<Line> total_lines, left_lines;
  const std::size_t element = op.element > 0 ? op.element : size_of(dtype);
  const std::size_t most = std::max<std::size_t>(block_bytes / element, 1);
  const std::size_t alignment = std::min<std::size_t>(element & ~(element - 1), sizeof(Line));
  const void* const last = sources[source_count - 1];
  const auto is_clear_of = [&](const void* source) {
    return !overlap(destinations[0], source, count * element);
  };
  const bool in_place = is_aligned(destinations[0], alignment) &&
                        std::all_of(sources, sources + source_count - 1, is_clear_of) &&
                        (destinations[0] == last || is_clear_of(last));
  std::byte* const buffer = in_place ? nullptr : room(total_lines, std::min(most, count) * element);
  for (std::size_t done = 0; done < count; done += most) {
    const std::size_t block = std::min(most, count - done), bytes = block * element, at = done * element;
    const auto source = [&](int k) { return static_cast<const std::byte*>(sources[k]) + at; };
    std::byte* const total = in_place ? static_cast<std::byte*>(destinations[0]) + at : buffer;
    if (total != source(source_count - 1)) std::memcpy(total, source(source_count - 1), bytes);
    for (int k = source_count - 2; k >= 0; --k) {
      const std::byte* left = source(k);
      if (!is_aligned(left, alignment)) {
        std::byte* const aligned = room(left_lines, bytes);
        std::memcpy(aligned, left, bytes);
        left = aligned;
      }
      op.apply(left, total, block, dtype);
    }
    for (int k = in_place ? 1 : 0; k < destination_count; ++k) {
      std::memcpy(static_cast<std::byte*>(destinations[k]) + at, total, bytes);
    }
  }
}

}  // namespace ringreduce

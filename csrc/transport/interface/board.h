// What a rank says to the others when they agree on who survives; see engine/agreement.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ringreduce {

inline constexpr std::size_t longest_blob = 512;  // bytes

struct Board {
  std::vector<std::uint64_t>
      alive;                   // a bit for each rank that it counts as alive; empty: it has said nothing
  std::uint32_t step = 0;      // of the exchanges, how far it has come
  std::uint32_t finished = 0;  // the step that it has seen all members reach
  std::string blob;            // of that step
};

// Of `alive`, for so many ranks.
constexpr std::size_t words_for(int world) {
  return (static_cast<std::size_t>(world) + 63) / 64;
}

// As bytes, and back; nothing where they are no board of so many ranks.
std::string packed(const Board& board);
std::optional<Board> unpacked(std::string_view text, int world);

}  // namespace ringreduce

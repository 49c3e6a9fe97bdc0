// The board that a rank shows the others when they agree on the survivors; see engine/endings/agreement.h.
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
  std::vector<std::uint64_t> alive;  // a bit for each rank that it counts as alive; empty: nothing shown yet
  std::uint32_t step = 0;            // the step that it has reached in the exchanges
  std::uint32_t finished = 0;        // the last step that it has seen all members reach
  std::string blob;                  // of that step
};

// ControlMessages of `alive` for this many ranks.
constexpr std::size_t words_for(int world) {
  return (static_cast<std::size_t>(world) + 63) / 64;
}

// Converts a board to bytes, and back; nullopt if the bytes are no board of this many ranks.
std::string packed(const Board& board);
std::optional<Board> unpacked(std::string_view text, int world);

}  // namespace ringreduce

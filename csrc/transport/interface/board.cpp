#include "transport/interface/board.h"

#include <cstring>

namespace ringreduce {
namespace {

struct Head {
  std::uint32_t step, finished, words, blob_bytes;
};

}  // namespace

std::string packed(const Board& board) {
  const Head head{board.step, board.finished, static_cast<std::uint32_t>(board.alive.size()),
                  static_cast<std::uint32_t>(board.blob.size())};
  std::string text(reinterpret_cast<const char*>(&head), sizeof head);
  text.append(reinterpret_cast<const char*>(board.alive.data()), board.alive.size() * sizeof board.alive[0]);
  return text + board.blob;
}

std::optional<Board> unpacked(std::string_view text, int world) {
  Head head;
  if (text.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, text.data(), sizeof head);
  text.remove_prefix(sizeof head);
  Board board{std::vector<std::uint64_t>(words_for(world)), head.step, head.finished, ""};
  const std::size_t bytes = board.alive.size() * sizeof board.alive[0];
  if (head.words != board.alive.size() || head.blob_bytes > longest_blob) return std::nullopt;
  if (text.size() != bytes + head.blob_bytes) return std::nullopt;
  std::memcpy(board.alive.data(), text.data(), bytes);
  board.blob = text.substr(bytes);
  return board;
}

}  // namespace ringreduce

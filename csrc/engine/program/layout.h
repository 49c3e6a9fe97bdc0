// The steps of a program with every address and length computed for one slice. The executor walks them.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/program/geometry.h"
#include "engine/program/program.h"

namespace ringreduce {

// One run of elements of a message, and where this rank keeps it, as byte offsets into the named memories.
struct Move {
  std::size_t source = 0, target = 0;
  std::size_t own = 0;    // of a local combination: what `source` is combined with, if not the target itself
  std::size_t count = 0;  // elements
  std::size_t bytes = 0;
  Memory from = Memory::input, to = Memory::output, own_in = Memory::input;
  bool last = false, keep = true, quantize = false;  // as in Part
};

struct Action {
  const Step* step = nullptr;
  const Move* moves = nullptr;
  const Move* moves_end = nullptr;
  const int* peers = nullptr;
  int peer_count = 0;
  int remote = 0;         // combine with two sources: the index of the peer's
  bool simple = false;    // one run, and two sources if it combines: takes the short path
  bool skip = false;      // an uneven chunk ended before this slice, so there is no message
  std::size_t bytes = 0;  // of the message as sent

  std::span<const Move> runs() const { return {moves, moves_end}; }
  std::span<const int> receivers() const { return {peers, static_cast<std::size_t>(peer_count)}; }
};

class Layout {
 public:
  // Computes slice `slice`; the program must stay in place. Reuses memory.
  void resolve(const Program& program, const Geometry& geometry, std::size_t slice);
  const std::vector<Action>& actions() const { return actions_; }
  std::size_t bytes() const {
    return actions_.capacity() * sizeof(Action) + moves_.capacity() * sizeof(Move);
  }

 private:
  std::vector<Action> actions_;
  std::vector<Move> moves_;
};

}  // namespace ringreduce

// How a call is cut into slices that run one after the other.
#pragma once

#include <cstddef>
#include <limits>
#include <vector>

#include "engine/planning/call.h"

namespace ringreduce {

// Elements of an array, and where they are in it.
struct Block {
  std::size_t begin, count;
};
// All blocks of the array, even if this rank does not have it.
std::vector<Block> blocks_of(const Call& call, bool of_input, int world, int rank);

// Each slice has some elements of every block, from the same place to the same place. The cut is the same on
// all ranks: a rank that has both arrays needs at most so many bytes for a slice. If only two ranks know the
// length of a block, there is one slice.
struct Cut {
  Cut(const Call& call, int world, std::size_t bytes);
  Block of(const Block& block, std::size_t slice) const;

  std::size_t each = std::numeric_limits<std::size_t>::max();  // elements of a block
  std::size_t slices = 1;
};

}  // namespace ringreduce

// Uneven blocks of a buffer, one for each rank.
#pragma once

#include <cstddef>
#include <vector>

namespace ringreduce {

// The elements of each chunk and where they begin in the user's buffer, for collectives with uneven counts.
struct Extents {
  std::vector<std::size_t> offset;
  std::vector<std::size_t> count;
  friend bool operator==(const Extents&, const Extents&) = default;
};

}  // namespace ringreduce

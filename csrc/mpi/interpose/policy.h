// When to serve a call: where it was measured to be no slower than the library's own.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "mpi/interpose/functions.h"

namespace ringreduce::mpi {

// Whose library this is built for; RINGREDUCE_MPI_LIBRARY names one.
enum class Library : std::uint8_t { openmpi, mpich, other };

class Policy {
 public:
  Policy() = default;
  // For a communicator of this many ranks. `crowded`: more ranks than cores.
  Policy(int world, bool crowded, bool everything);

  // `bytes` in all: of the whole buffer, of all blocks together.
  bool serves(Function function, bool in_background, std::size_t bytes) const {
    const Range& range = ranges_[in_background][static_cast<int>(function)];
    return bytes >= range.from && bytes < range.to;
  }

 private:
  struct Range {
    std::size_t from = 0, to = 0;
  };
  std::array<std::array<Range, function_count>, 2> ranges_{};
};

}  // namespace ringreduce::mpi

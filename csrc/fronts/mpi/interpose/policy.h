// Decides when to serve a call: if it was measured to be no slower than the library's own.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace ringreduce::mpi {

// The MPI functions that are taken over, each in all its forms: MPI_Bcast, MPI_Ibcast, MPI_Bcast_c ...
enum class Function : std::uint8_t {
  allreduce,
  reduce,
  scan,
  exscan,
  reduce_scatter,
  reduce_scatter_block,
  allgather,
  allgatherv,
  bcast,
  gather,
  gatherv,
  scatter,
  scatterv,
  alltoall,
  alltoallv,
  barrier,
};
inline constexpr int function_count = 16;

// The library that this is built for; RINGREDUCE_MPI_LIBRARY names one.
enum class Library : std::uint8_t { openmpi, mpich, other };

class Policy {
 public:
  Policy() = default;
  // `crowded`: more ranks than cores. `everything`: regardless of measurements.
  Policy(bool crowded, bool everything);
  void serve_no_background() { sizes_[true].fill(0); }

  bool serves_some(Function function, bool in_background) const {
    return sizes_[in_background][static_cast<int>(function)] != 0;
  }
  // `bytes` in total: of the whole buffer, or of all blocks together. None where the ranks do not know them.
  bool serves(Function function, bool in_background, std::size_t bytes) const {
    return (sizes_[in_background][static_cast<int>(function)] >> std::bit_width(bytes) & 1) != 0;
  }

 private:
  // A bit for each number of bits that a size can have.
  std::array<std::array<std::uint64_t, function_count>, 2> sizes_{};
};

}  // namespace ringreduce::mpi

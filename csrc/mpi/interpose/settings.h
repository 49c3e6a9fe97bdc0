// What the environment says.
#pragma once

#include <cstdint>

namespace ringreduce::mpi {

struct Settings {
  // RINGREDUCE_MPI: hand everything on ("off"), serve what was measured as faster ("auto", the default), or
  // all that can be served ("all").
  enum class Mode : std::uint8_t { off, measured, all } mode = Mode::measured;
  // RINGREDUCE_MPI_COUNT: "1" for rank 0 to say at the end how many calls were served, "all" for every rank.
  enum class Count : std::uint8_t { none, first_rank, all_ranks } count = Count::none;
};

const Settings& settings();

}  // namespace ringreduce::mpi

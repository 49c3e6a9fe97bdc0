// Settings from the environment.
#pragma once

#include <cstdint>

namespace ringreduce::mpi {

// RINGREDUCE_MPI: hand on everything ("off"), serve what was measured to be no slower ("auto", the default),
// or all calls that can be served ("all").
enum class Mode : std::uint8_t { off, measured, all };
Mode mode();

// Whether RINGREDUCE_ALGORITHM is set; the same on all ranks.
bool names_algorithms();

}  // namespace ringreduce::mpi

// What the environment says.
#pragma once

#include <cstdint>

namespace ringreduce::mpi {

// RINGREDUCE_MPI: hand everything on ("off"), serve what was measured as faster ("auto", the default), or all
// that can be served ("all").
enum class Mode : std::uint8_t { off, measured, all };
Mode mode();

}  // namespace ringreduce::mpi

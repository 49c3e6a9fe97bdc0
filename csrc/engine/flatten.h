// A program and its geometry as one piece of memory, for a kernel that walks it (cuda/interpreter.h).
#pragma once

#include <cstddef>
#include <vector>

#include "engine/geometry.h"
#include "engine/program.h"

namespace ringreduce {

// `arena_bytes` is what a block has for its messages. Throws InvalidArgument where there are more ranks than
// a kernel takes, or where the messages of two rounds do not fit: slices must be shorter then.
std::vector<std::byte> flatten(const Program& program, const Geometry& geometry, std::size_t arena_bytes);

}  // namespace ringreduce

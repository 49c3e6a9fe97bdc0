// A program and its geometry as one piece of memory, for a kernel that walks it
// (gpu/kernels/cuda/interpreter.h).
#pragma once

#include <cstddef>
#include <vector>

#include "engine/program/geometry.h"
#include "engine/program/program.h"

namespace ringreduce {

// `arena_bytes` is a block's space for messages; geometry made with its arena_capacity() fits. Throws
// InvalidArgument if there are more ranks than a kernel serves, or if the messages of two rounds do not fit.
std::size_t arena_capacity(std::size_t arena_bytes);
std::vector<std::byte> flatten(const Program& program, const Geometry& geometry, std::size_t arena_bytes);

}  // namespace ringreduce

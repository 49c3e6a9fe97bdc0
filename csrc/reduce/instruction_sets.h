// The builds of the kernels, one per instruction set.
#pragma once

#include <span>

#include "reduce/reduce.h"
#include "reduce/wire.h"

namespace ringreduce {

struct InstructionSet {
  const char* name;
  Combine combine[dtype_count][op_count];  // nullptr where an operator has no meaning for the type
  void (*copy)(void* const* destinations, int destination_count, const void* source, std::size_t bytes);
  Codec codec[wire_count];
};

// Those built for this kind of machine that this machine can run, the fastest first; the last one runs
// anywhere.
std::span<const InstructionSet* const> instruction_sets();

}  // namespace ringreduce

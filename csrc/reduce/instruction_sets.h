// The builds of the kernels, one per instruction set.
#pragma once

#include <span>

#include "reduce/encoding.h"
#include "reduce/reduce.h"

namespace ringreduce {

struct InstructionSet {
  const char* name;
  Combine combine[dtype_count][op_count];  // nullptr if an operator is not defined for the type
  void (*copy)(void* const* destinations, int destination_count, const void* source, std::size_t bytes);
  Codec codec[encoding_count];
};

// Those built for this kind of machine that this machine can run, the fastest first; the last one runs on
// any.
std::span<const InstructionSet* const> instruction_sets();

}  // namespace ringreduce

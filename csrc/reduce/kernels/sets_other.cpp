#include "reduce/instruction_sets.h"

namespace ringreduce {

namespace plain {
extern const InstructionSet kernels;
}

std::span<const InstructionSet* const> instruction_sets() {
  static constexpr const InstructionSet* sets[] = {&plain::kernels};
  return sets;
}

}  // namespace ringreduce

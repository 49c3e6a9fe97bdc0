#include "reduce/instruction_sets.h"

namespace ringreduce {

namespace RINGREDUCE_ISA {
extern const InstructionSet kernels;
}

std::span<const InstructionSet* const> instruction_sets() {
  static constexpr const InstructionSet* sets[] = {&RINGREDUCE_ISA::kernels};
  return sets;
}

}  // namespace ringreduce

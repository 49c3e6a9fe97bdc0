#include "reduce/instruction_sets.h"

namespace ringreduce {

namespace neon {
extern const InstructionSet kernels;
}

std::span<const InstructionSet* const> instruction_sets() {
  static constexpr const InstructionSet* sets[] = {&neon::kernels};
  return sets;
}

}  // namespace ringreduce

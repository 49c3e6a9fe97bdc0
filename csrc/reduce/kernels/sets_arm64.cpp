#include <sys/auxv.h>

#include "reduce/instruction_sets.h"

#ifndef HWCAP2_BF16
#define HWCAP2_BF16 (1 << 14)  // Linux 5.6; Debian 11's headers lack it
#endif

namespace ringreduce {

namespace neon_bf16 {
extern const InstructionSet kernels;
}
namespace neon {
extern const InstructionSet kernels;
}

std::span<const InstructionSet* const> instruction_sets() {
  static constexpr const InstructionSet* sets[] = {&neon_bf16::kernels, &neon::kernels};
  static const bool has_bf16 =
      (getauxval(AT_HWCAP) & HWCAP_ASIMDHP) != 0 && (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
  return std::span(sets).subspan(has_bf16 ? 0 : 1);
}

}  // namespace ringreduce

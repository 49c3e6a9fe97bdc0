#include "reduce/instruction_sets.h"

namespace ringreduce {

namespace avx512 {
extern const InstructionSet kernels;
}
namespace avx2 {
extern const InstructionSet kernels;
}
namespace plain {
extern const InstructionSet kernels;
}

namespace {

struct Usable {
  const InstructionSet* sets[3];
  std::size_t count = 0;
  Usable() {
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                            __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                            __builtin_cpu_supports("avx512dq");
    if (has_avx512) sets[count++] = &avx512::kernels;
    if (has_avx2) sets[count++] = &avx2::kernels;
    sets[count++] = &plain::kernels;
  }
};

}  // namespace

std::span<const InstructionSet* const> instruction_sets() {
  static const Usable usable;
  return {usable.sets, usable.count};
}

}  // namespace ringreduce

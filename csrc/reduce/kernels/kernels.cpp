// The table of one instruction set. Compiled several times: the build file sets the instruction set, the size
// of its registers, and the folder of its family's conversions.
#include "reduce/arithmetic/combinations.h"
#include "reduce/instruction_sets.h"
#include "reduce/kernels/blocks.h"
#include "reduce/kernels/loops.h"
#include "reduce/kernels/substitutes.h"

namespace ringreduce::RINGREDUCE_ISA {

constexpr bool is_any(DType) {
  return true;
}
static_assert(is_complete<is_any>());

template <class Combination>
constexpr Combine function_for(Combination) {
  using Better = Substitute<typename Combination::Format, typename Combination::Op>;
  using Format = typename Better::Format;
  using Op = typename Better::Op;
  if constexpr (!std::is_arithmetic_v<typename Format::Element>) {
    return combine_singly<Format, Op>;
  } else if constexpr (std::is_same_v<Format, BFloat16>) {
    return combine_words<PairsOfBFloat16, PairsOfBFloat16, BFloat16, Op>;
  } else if constexpr (is_small<Format> && sizeof(typename Format::Element) == 1 && !is_arithmetic<Float16>) {
    constexpr bool is_product = std::is_same_v<Op, Product>;
    return combine_words<FoursOfFloat8<Format, !is_product>,
                         FoursOfFloat8<Format, !is_product, std::is_same_v<Op, Sum>>, Format, Op>;
  } else if constexpr (std::is_same_v<Format, Float16> && std::is_same_v<Op, Sum> &&
                       adds_halves<Vec<std::int16_t, 8>>) {
    return combine_halves<Op>;
  } else if constexpr (together<Format> > 1) {  // elements of the combination are several of the format
    return combine_often<Format, Op, together<Format>>;
  } else if constexpr (Combination::is_often || std::is_same_v<Format, Float16>) {
    return combine_often<Format, Op, Combination::elements_per_value>;
  } else {
    return loop<Format, Op, AnySpans>;
  }
}

void copy_spans(void* const* destinations, int destination_count, const void* source, std::size_t bytes) {
  using Byte = Integer<std::uint8_t>;
  const void* const* sources = &source;
  if (destination_count == 1) {
    loop<Byte, Sum, FixedSpans<1, 1>>(destinations, 1, sources, 1, bytes, 1);
  } else if (destination_count == 2) {
    loop<Byte, Sum, FixedSpans<2, 1>>(destinations, 2, sources, 1, bytes, 1);
  } else {
    loop<Byte, Sum, AnySpans>(destinations, destination_count, sources, 1, bytes, 1);
  }
}

#define RINGREDUCE_TEXT(name) #name
#define RINGREDUCE_NAME(name) RINGREDUCE_TEXT(name)

consteval InstructionSet make_set() {
  InstructionSet set{};
  set.name = RINGREDUCE_NAME(RINGREDUCE_ISA);
  set.copy = copy_spans;
  for (int dtype = 0; dtype < dtype_count; ++dtype) {
    for (int op = 0; op < op_count; ++op) {
      visit_combination<is_any>(static_cast<DType>(dtype), static_cast<Op>(op), [&](auto combination) {
        set.combine[dtype][op] = function_for(combination);
      });
    }
  }
  for (int wire = 0; wire < encoding_count; ++wire) {
    visit_coder(static_cast<Encoding>(wire),
                [&]<class Coder>(Coder) { set.codec[wire] = {encode_blocks<Coder>, decode_blocks<Coder>}; });
  }
  return set;
}

extern constinit const InstructionSet kernels;
constinit const InstructionSet kernels = make_set();

}  // namespace ringreduce::RINGREDUCE_ISA

// float16 <-> float32 in integer arithmetic, for instruction sets without a conversion.
#pragma once

#include "reduce/arithmetic/floats.h"

namespace ringreduce::RINGREDUCE_ISA {

using Float16 = SmallFloat<std::uint16_t, 5, 10, true>;

}  // namespace ringreduce::RINGREDUCE_ISA

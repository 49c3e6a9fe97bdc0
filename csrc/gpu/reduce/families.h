// The combinations that are compiled for each family of dtypes, for numbers of sources, and for wire formats.
#pragma once

#include "gpu/reduce/coded.h"
#include "gpu/reduce/combine.h"
#include "gpu/reduce/kernels.h"
#include "reduce/arithmetic/coders.h"
#include "reduce/arithmetic/combinations.h"

namespace ringreduce::device {

template <Family family>
constexpr bool is_in(DType dtype) {
  return family_of(dtype) == family;
}
static_assert(is_complete<is_in<Family::wide_float>>() && is_complete<is_in<Family::small_float>>() &&
              is_complete<is_in<Family::wide_integer>>() && is_complete<is_in<Family::small_integer>>());

// Calls visit(std::integral_constant of the number), or of 0 if the combination is not compiled for it.
template <class Combination, class Visit>
void visit_sources(int sources, Visit visit) {
  if constexpr (Combination::is_often) {
    if (sources == 2) return visit(std::integral_constant<int, 2>());
    if (sources == 4) return visit(std::integral_constant<int, 4>());
    if (sources == 8) return visit(std::integral_constant<int, 8>());
  }
  visit(std::integral_constant<int, 0>());
}

// Calls visit(coder, format of plain spans): float32, and for formats of one byte per value the 16-bit
// floats.
template <class Visit>
void visit_codings(Encoding wire, DType plain, Visit visit) {
  visit_coder(wire, [&](auto coder) {
    if (plain == DType::float32) visit(coder, Float<float>());
    if constexpr (coder.header > 0) {
      if (plain == DType::float16) visit(coder, Float16());
      if (plain == DType::bfloat16) visit(coder, BFloat16());
    }
  });
}

}  // namespace ringreduce::device

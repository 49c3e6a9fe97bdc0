// The functions that a rank's kernel combines with: one over spans for each dtype and op. A kernel calls it
// through its address, so that it is not compiled anew for each kernel.
#pragma once

#include "reduce/cuda/families.h"

namespace ringreduce::device {

// Without initialisers, which variables in shared memory cannot have.
struct Pass {
  void (*run)(const Spans& spans, std::size_t thread, std::size_t threads);  // null: none
  std::uint32_t element_bytes;                                               // of what spans count
};

// `often`: two sources have code of their own, which takes more of each at once.
template <class Format, class Op, bool often>
RINGREDUCE_APART void run_pass(const Spans& spans, std::size_t thread, std::size_t threads) {
  if constexpr (often) {
    if (spans.source_count == 2) return combine<Format, Op, 2>(spans, thread, threads);
  }
  combine<Format, Op, 0>(spans, thread, threads);
}
static RINGREDUCE_APART void pass_bytes(const Spans& spans, std::size_t thread, std::size_t threads) {
  combine<Integer<std::uint8_t>, Sum, 1>(spans, thread, threads);
}

// Remembers the pass for the combination that it is called with.
struct Finder {
  Pass& found;
  template <class Combination>
  RINGREDUCE_DEVICE void operator()(Combination) const {
    using Format = typename Combination::Format;
    found = {run_pass<Format, typename Combination::Op, Combination::is_often>,
             sizeof(typename Format::Element)};
  }
};

template <Family family>
struct Passes {
  RINGREDUCE_DEVICE static Pass pass(DType dtype, Op op) {
    Pass found{nullptr, 1};
    visit_combination<is_in<family>>(dtype, op, Finder{found});
    return found;
  }
};

}  // namespace ringreduce::device

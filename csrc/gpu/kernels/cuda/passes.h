// The functions that a rank's kernel combines with: one over spans for each dtype and op. A kernel calls it
// through its address, so that it is not compiled again for each kernel.
#pragma once

#include "gpu/reduce/copy.h"
#include "gpu/reduce/families.h"

namespace ringreduce::device {

using CodedPass = void (*)(const CodedSpans& coded, std::size_t warp, std::size_t warps);

// Without initialisers, which variables in shared memory cannot have.
struct Pass {
  void (*run)(const Spans& spans, std::size_t thread, std::size_t threads);  // null: none
  std::uint32_t element_bytes;                                               // of what spans count
  // Of a call whose messages are encoded, instead of `run`: for its wire format, and for its arrays if they
  // hold 16-bit floats.
  CodedPass coded, convert;
};

// `often`: two sources have code of their own, which takes more of each at once.
template <class Format, class Op, bool often>
RINGREDUCE_APART void run_pass(const Spans& spans, std::size_t thread, std::size_t threads) {
  if constexpr (often) {
    if (spans.source_count == 2) return combine<Format, Op, 2>(spans, thread, threads);
  }
  combine<Format, Op, 0>(spans, thread, threads);
}
RINGREDUCE_APART void pass_bytes(const Spans& spans, std::size_t thread, std::size_t threads) {
  copy_bytes(spans, thread, threads);
}

// Remembers the pass for the combination that it is called with.
struct Finder {
  Pass& found;
  template <class Combination>
  RINGREDUCE_DEVICE void operator()(Combination) const {
    using Format = typename Combination::Format;
    found = {run_pass<Format, typename Combination::Op, Combination::is_often>,
             sizeof(typename Format::Element), nullptr, nullptr};
  }
};

template <Family family>
struct Passes {
  RINGREDUCE_DEVICE static Pass pass(DType dtype, Op op) {
    Pass found{nullptr, 1, nullptr, nullptr};
    visit_combination<is_in<family>>(dtype, op, Finder{found});
    return found;
  }
};

// Spans that are not encoded hold float32.
template <class Coder>
RINGREDUCE_APART void run_coded_pass(const CodedSpans& coded, std::size_t warp, std::size_t warps) {
  combine_coded<Coder, Float<float>>(coded, warp, warps);
}

struct CodedFinder {
  CodedPass& found;
  template <class Coder>
  RINGREDUCE_DEVICE void operator()(Coder) const {
    found = run_coded_pass<Coder>;
  }
};

struct CodedPasses {
  // `arrays`: the cast whose codes the arrays hold, or none.
  RINGREDUCE_DEVICE static Pass pass(Encoding wire, Encoding arrays) {
    Pass found{nullptr, sizeof(float), nullptr, nullptr};
    visit_coder(wire, CodedFinder{found.coded});
    visit_coder(arrays, CodedFinder{found.convert});
    return found;
  }
};

}  // namespace ringreduce::device

// The functions that groups of threads run on a GPU, run here on the CPU: threads one after another. In
// families, as the kernels are.
#pragma once

#include <cstddef>

#include "gpu/reduce/families.h"

namespace ringreduce::device {

// A group of threads, or of warps, and the order in which they are run.
struct Group {
  std::size_t size;
  bool backwards;

  template <class Body>
  void each(Body body) const {
    for (std::size_t i = 0; i < size; ++i) body(backwards ? size - 1 - i : i);
  }
};

void emulate_copy(const Spans& spans, Group group);
// `chosen` is the number of sources that the kernel is picked by; 0: the kernel for any number. These throw
// std::invalid_argument if there is none.
void emulate_combine(DType dtype, Op op, int chosen, const Spans& spans, Group group);
void emulate_coded(Encoding wire, DType plain, const CodedSpans& spans, Group group);

template <Family family>
void emulate_in(DType dtype, Op op, int chosen, Spans spans, Group group) {
  visit_combination<is_in<family>>(dtype, op, [&]<class Combination>(Combination) {
    spans.count *= Combination::elements_per_value;
    visit_sources<Combination>(chosen, [&](auto sources) {
      group.each([&](std::size_t thread) {
        combine<typename Combination::Format, typename Combination::Op, sources>(spans, thread, group.size);
      });
    });
  });
}

}  // namespace ringreduce::device

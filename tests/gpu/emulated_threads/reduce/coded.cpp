#include "emulated.h"

namespace ringreduce::device {

void emulate_copy(const Spans& spans, Group group) {
  Spans bytes = spans;
  emulate(Combination<Integer<std::uint8_t>, Sum, 1>{}, bytes, group);
}

bool emulate_coded(Wire wire, DType plain, const CodedSpans& spans, Group group) {
  bool found = false;
  visit_codings(wire, plain, [&]<class Coder, class Plain>(Coding<Coder, Plain>) {
    group.each([&](std::size_t warp) { combine_coded<Coder, Plain>(spans, warp, group.size); });
    found = true;
  });
  return found;
}

}  // namespace ringreduce::device

#include "emulated.h"

namespace ringreduce::device {

void emulate_copy(const Spans& spans, Group group) {
  Spans bytes = spans;
  emulate(Combination<Integer<std::uint8_t>, Sum, 1>{}, bytes, group);
}

void emulate_combine(DType dtype, Op op, int chosen, const Spans& spans, Group group) {
  if (!supports(dtype, op)) refuse(dtype, op);
  in_family(dtype, [&](auto family) { emulate_in<family>(dtype, op, chosen, spans, group); });
}

void emulate_coded(Encoding wire, DType plain, const CodedSpans& spans, Group group) {
  bool found = false;
  if (!supports(DType::float32, spans.op)) refuse(wire, plain, spans.op);
  visit_codings(wire, plain, [&]<class Coder, class Plain>(Coding<Coder, Plain>) {
    group.each([&](std::size_t warp) { combine_coded<Coder, Plain>(spans, warp, group.size); });
    found = true;
  });
  if (!found) refuse(wire, plain, spans.op);
}

}  // namespace ringreduce::device

#include "emulated.h"

#include "gpu/reduce/copy.h"

namespace ringreduce::device {

extern template void emulate_in<Family::wide_float>(DType, Op, int, Spans, Group);
extern template void emulate_in<Family::small_float>(DType, Op, int, Spans, Group);
extern template void emulate_in<Family::wide_integer>(DType, Op, int, Spans, Group);
extern template void emulate_in<Family::small_integer>(DType, Op, int, Spans, Group);

void emulate_copy(const Spans& spans, Group group) {
  group.each([&](std::size_t thread) { copy_bytes(spans, thread, group.size); });
}

void emulate_combine(DType dtype, Op op, int chosen, const Spans& spans, Group group) {
  if (!supports(dtype, op)) refuse(dtype, op);
  in_family(dtype, [&](auto family) { emulate_in<family>(dtype, op, chosen, spans, group); });
}

void emulate_coded(Encoding wire, DType plain, const CodedSpans& spans, Group group) {
  bool found = false;
  if (!supports(DType::float32, spans.op)) refuse(wire, plain, spans.op);
  visit_codings(wire, plain, [&]<class Coder, class Plain>(Coder, Plain) {
    group.each([&](std::size_t warp) { combine_coded<Coder, Plain>(spans, warp, group.size); });
    found = true;
  });
  if (!found) refuse(wire, plain, spans.op);
}

}  // namespace ringreduce::device

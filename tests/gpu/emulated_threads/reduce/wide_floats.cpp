#include "emulated.h"

namespace ringreduce::device {

template <>
void emulate_in<Family::wide_float>(DType dtype, Op op, int chosen, Spans spans, Group group) {
  visit_family<Family::wide_float>(dtype, op, chosen,
                                   [&](auto combination) { emulate(combination, spans, group); });
}

}  // namespace ringreduce::device

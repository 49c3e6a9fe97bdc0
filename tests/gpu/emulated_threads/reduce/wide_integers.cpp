#include "emulated.h"

namespace ringreduce::device {

template <>
void emulate_in<Family::wide_integer>(DType dtype, Op op, int chosen, Spans spans, Group group) {
  visit_family<Family::wide_integer>(dtype, op, chosen,
                                     [&](auto combination) { emulate(combination, spans, group); });
}

}  // namespace ringreduce::device

#include "emulated.h"

namespace ringreduce::device {

bool emulate_wide_floats(DType dtype, Op op, int chosen, Spans spans, Group group) {
  bool found = false;
  visit_wide_floats(dtype, op, chosen, [&](auto combination) {
    emulate(combination, spans, group);
    found = true;
  });
  return found;
}

}  // namespace ringreduce::device

// Arrays of 16-bit floats whose messages are quantised. A slice is converted to float32 when it begins, runs
// in memory of its own as if in place, and is rounded once, into the arrays, when it is finished. If the
// arrays held partial sums, each hop would round them again, and a rank would pass on other values than it
// received.
#pragma once

#include "engine/program/geometry.h"
#include "schedule/check.h"

namespace ringreduce {

// Calls visit(byte offset of the float32 values, byte offset in the array, number of values) for each run of
// a slice that is converted: of the input when it begins, of the output when it is finished.
template <class Visit>
void each_narrow_run(const Geometry& g, const Schedule& schedule, std::size_t slice, Memory memory,
                     Visit visit) {
  const auto holds = memory == Memory::input ? starts_with_value : holds_result;
  const int stride = g.whole ? schedule.chunks : 1;  // these collectives treat all chunks alike
  for (int chunk = 0; chunk < schedule.chunks; chunk += stride) {
    if (!holds(schedule, chunk)) continue;
    const Run run = g.in_arrays(memory, slice, chunk, stride);
    visit(g.stride() * chunk * g.element, encoded_bytes(g.narrow, run.offset), run.count);
  }
}

}  // namespace ringreduce

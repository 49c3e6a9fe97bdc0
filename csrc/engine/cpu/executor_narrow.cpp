// Arrays of 16-bit floats whose messages are quantised: a slice is converted to float32 when it begins, run
// in memory of its own as if in place, and rounded once, into the arrays, when it is over. Were partial sums
// kept in the arrays, each hop would round them again, and what is passed on would not be what has arrived.
#include "engine/cpu/executor.h"

namespace ringreduce {

// Calls visit(its values as float32, bytes into the array, number of values) for each run that `holds`.
template <class Holds, class Visit>
void Executor::each_narrow_run(std::size_t slice, Memory memory, Holds holds, Visit visit) const {
  const Geometry& g = task_.plan->geometry;
  const Schedule& schedule = task_.plan->program->schedule;
  const int stride = g.whole ? schedule.chunks : 1;  // these collectives treat all chunks alike
  for (int chunk = 0; chunk < schedule.chunks; chunk += stride) {
    if (!holds(schedule, chunk)) continue;
    const Run run = g.in_arrays(memory, slice, chunk, stride);
    visit(g.stride() * chunk * g.element, encoded_bytes(g.narrow, run.offset), run.count);
  }
}

void Executor::widen(Cursor& cursor) {
  const Codec cast = codec_for(task_.plan->geometry.narrow);
  cursor.base[static_cast<int>(Memory::input)] = cursor.base[static_cast<int>(Memory::output)] = cursor.wide;
  each_narrow_run(cursor.slice, Memory::input, starts_with_value,
                  [&](std::size_t to, std::size_t from, std::size_t count) {
                    cast.decode(reinterpret_cast<float*>(cursor.wide + to), task_.input + from, count);
                  });
}

void Executor::narrow(const Cursor& cursor) {
  const Codec cast = codec_for(task_.plan->geometry.narrow);
  each_narrow_run(cursor.slice, Memory::output, holds_result,
                  [&](std::size_t from, std::size_t to, std::size_t count) {
                    cast.encode(task_.output + to, reinterpret_cast<const float*>(cursor.wide + from), count);
                  });
}

}  // namespace ringreduce

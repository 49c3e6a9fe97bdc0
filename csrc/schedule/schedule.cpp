#include "schedule/schedule.h"

namespace ringreduce {

int chunks_in(const std::vector<Span>& spans) {
  int sum = 0;
  for (const Span& span : spans) sum += span.count;
  return sum;
}

namespace {

bool holds(const Schedule& schedule, int chunk, bool before) {
  switch (contents(schedule.collective, before)) {
    case Holds::own_block:
      return chunk == schedule.rank;
    case Holds::on_root:
      return schedule.rank == schedule.root;
    case Holds::before_own:
      return schedule.rank > 0;
    default:
      return true;
  }
}

}  // namespace

bool holds_result(const Schedule& schedule, int chunk) {
  return chunk < schedule.chunks && holds(schedule, chunk, false);  // not scratch
}

bool starts_with_value(const Schedule& schedule, int chunk) {
  return holds(schedule, chunk, true);
}

bool same_length(const Schedule& s, int a, int b) {
  // Blocks that travel through other ranks require equal lengths.
  if (s.collective == Collective::all_to_all || s.chunks == 0) return true;
  return a % s.chunks == b % s.chunks;
}

}  // namespace ringreduce

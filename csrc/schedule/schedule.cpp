#include "schedule/schedule.h"

#include <stdexcept>

namespace ringreduce {

const char* name_of(Collective collective) {
  switch (collective) {
    case Collective::all_reduce:
      return "all_reduce";
    case Collective::reduce_scatter:
      return "reduce_scatter";
    case Collective::all_gather:
      return "all_gather";
    case Collective::broadcast:
      return "broadcast";
    case Collective::reduce:
      return "reduce";
    case Collective::gather:
      return "gather";
    case Collective::scatter:
      return "scatter";
    case Collective::all_to_all:
      return "all_to_all";
    case Collective::barrier:
      return "barrier";
  }
  throw std::invalid_argument("unknown collective");
}

int chunks_in(const std::vector<Span>& spans) {
  int sum = 0;
  for (const Span& span : spans) sum += span.count;
  return sum;
}

bool reduces(Collective collective) {
  return collective == Collective::all_reduce || collective == Collective::reduce_scatter ||
         collective == Collective::reduce;
}

bool holds_result(const Schedule& schedule, int chunk) {
  if (chunk >= schedule.chunks) return false;  // scratch
  switch (schedule.collective) {
    case Collective::reduce_scatter:
    case Collective::scatter:
      return chunk == schedule.rank;
    case Collective::reduce:
    case Collective::gather:
      return schedule.rank == schedule.root;
    default:
      return true;
  }
}

bool starts_with_value(const Schedule& s, int chunk) {
  switch (s.collective) {
    case Collective::all_gather:
    case Collective::gather:
      return chunk == s.rank;
    case Collective::broadcast:
    case Collective::scatter:
      return s.rank == s.root;
    default:
      return true;
  }
}

bool same_length(const Schedule& s, int a, int b) {
  // Blocks that travel through other ranks require equal lengths.
  if (s.collective == Collective::all_to_all || s.chunks == 0) return true;
  return a % s.chunks == b % s.chunks;
}

}  // namespace ringreduce

// Schedules made of schedules, so that every algorithm writes its own idea only, and writes it once.
#pragma once

#include <vector>

#include "schedule/schedule.h"

namespace ringreduce {

// The half run backwards, sends and receives swapped. What scatters sums gathers copies, and the other way
// round: reduce_scatter <-> all_gather, reduce <-> broadcast, gather <-> scatter.
Schedule mirror(const Schedule& half);

// An all-reduce: the one, and when it is over the other.
Schedule then(Schedule first, const Schedule& second);

// Algorithms made of one that does half of the work: its mirror image, and an all-reduce by both.
template <Algorithm half>
Schedule mirrored(const Place& place) {
  return mirror(half(place));
}
template <Algorithm half>
Schedule all_reduce_of(const Place& place) {
  return then(half(place), mirrored<half>(place));
}

// Both at the same time, round by round; they have no chunk in common. Messages to (from) the same peers in
// one round travel as one.
Schedule beside(Schedule first, const Schedule& second);

// An all-reduce for powers of two, lifted to any world. With p the largest power of two in n, each rank from
// p on hands its values to rank - p, waits, and is handed the sums: two more rounds, and one more send of the
// whole buffer for each of both.
Schedule fold(Algorithm power_of_two, const Place& place);

// The schedule of a smaller or differently numbered world, put in its place: inner rank i is rank ranks[i] of
// `outer`, and inner chunk c is the run blocks[c]. A run may be empty; messages left without chunks vanish.
Schedule embed(const Schedule& inner, Schedule outer, const std::vector<int>& ranks,
               const std::vector<Span>& blocks);

}  // namespace ringreduce

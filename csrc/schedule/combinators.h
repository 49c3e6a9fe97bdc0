// Combinators make schedules from schedules, so that every algorithm is written once and contains only its
// own idea.
#pragma once

#include <vector>

#include "schedule/schedule.h"

namespace ringreduce {

// The half run backwards, with sends and receives swapped. The mirror image of summing is copying:
// reduce_scatter <-> all_gather, reduce <-> broadcast, gather <-> scatter.
Schedule mirror(const Schedule& half);

// An all-reduce: the first half, followed by the second.
Schedule then(Schedule first, const Schedule& second);

// Algorithms derived from one half: its mirror image, and the all-reduce of both.
template <Algorithm half>
Schedule mirrored(const Place& place) {
  return mirror(half(place));
}
template <Algorithm half>
Schedule all_reduce_of(const Place& place) {
  return then(half(place), mirrored<half>(place));
}

// Runs both at the same time, round by round; they share no chunk. Messages to (from) the same peers in one
// round travel as one.
Schedule beside(Schedule first, const Schedule& second);

// Extends an all-reduce for powers of two to any world. With p the largest power of two in n, each rank r >=
// p sends its values to rank r - p, waits, and receives the sums. This takes two more rounds, and each rank
// of such a pair sends the whole buffer once more.
Schedule fold(Algorithm power_of_two, const Place& place);

// An exscan: every rank passes its values to the next one, and the ranks from 1 on scan what they got.
Schedule exscan_by(Algorithm scan, const Place& place);
template <Algorithm scan>
Schedule exclusive(const Place& place) {
  return exscan_by(scan, place);
}

// Embeds the schedule of a smaller or renumbered world: inner rank i is rank ranks[i] of `outer`, and inner
// chunk c is the run blocks[c]. A run may be empty; messages without chunks are dropped.
Schedule embed(const Schedule& inner, Schedule outer, const std::vector<int>& ranks,
               const std::vector<Span>& blocks);

}  // namespace ringreduce

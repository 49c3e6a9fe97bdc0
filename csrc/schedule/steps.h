// The vocabulary of algorithms: empty schedules, messages, runs of chunks.
#pragma once

#include <vector>

#include "schedule/schedule.h"

namespace ringreduce {

using Spans = std::vector<Span>;

// A schedule without rounds.
Schedule begin(Collective collective, const Place& place, int chunks);

// The parts of a round.
Send to(int peer, Spans chunks);
Recv from(int peer, Spans chunks);         // replaces
Recv reduce_from(int peer, Spans chunks);  // reduces into the chunks

// Adds a round in which every rank's chunks replace those of the next.
Schedule shift(Schedule schedule);

// value modulo world, never negative: wrap(-1, 4) == 3.
int wrap(int value, int world);

// The smallest k with 2^k >= n.
int ceil_log2(int n);

// All ranks but this one, ascending.
std::vector<int> everyone_else(const Place& place);

// `count` chunks starting at `first`, on a circle of `world` chunks: two spans if it wraps round.
Spans circular(int first, int count, int world);

// The ranks in the order in which a ring or a chain visits them.
class Lap {
 public:
  explicit Lap(const Place& place);

  // Cyclic: any position is valid.
  int at(int position) const { return order_[wrap(position, static_cast<int>(order_.size()))]; }
  int position_of(int rank) const;

 private:
  std::vector<int> order_;
};

// Adds a run of chunks at the end, joined to the last run if it continues it.
void append(Spans& spans, Span next);

}  // namespace ringreduce

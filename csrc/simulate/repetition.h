// Finds the parts of a simulation that repeat others and can be left out.
#pragma once

#include <functional>
#include <vector>

#include "schedule/schedule.h"
#include "simulate/network.h"
#include "simulate/script.h"

namespace ringreduce {

// Links that turning the network maps onto each other.
struct Turned {
  std::vector<int> first;  // by link: the lowest-numbered of these
  std::vector<int> turns;  // that map the first one onto this one
};

// Throws std::invalid_argument if turning changes the network, or returns a link to its place before all
// ranks. Without a period, each link stands for itself.
Turned turned_links(const Network& network);

// The part of all ranks that must be simulated.
struct Repetition {
  int ranks = 0;  // each of the others does the same as one of them
  // Rank r has script r modulo their number.
  std::vector<Script> scripts;
  int chunks = 1;  // of the buffer
  int rounds = 0;
};

// Checks whether each rank's schedule equals that of the rank a number of places further on, and the network
// does not distinguish them either. Compares all ranks' schedules unless they are long, and otherwise as many
// as time permits, in no particular order. `alike`: whether ranks that do the same may be left out.
Repetition find_repetition(const Network& network, const std::function<Schedule(int)>& schedule_of,
                           bool alike);

}  // namespace ringreduce

// What a simulation can leave out, because it is like what it does.
#pragma once

#include <functional>
#include <vector>

#include "schedule/schedule.h"
#include "simulate/network.h"
#include "simulate/script.h"

namespace ringreduce {

// Links that turning the network takes to each other.
struct Turned {
  std::vector<int> first;  // by link: the one of the lowest number among these
  std::vector<int> turns;  // that take the first one to this one
};

// Throws std::invalid_argument if the network does not look the same when it is turned, or a link is back in
// its place before all ranks are. Where nothing is known of that (no period), each link is by itself.
Turned turned_links(const Network& network);

// What has to be simulated of all ranks.
struct Repetition {
  int ranks = 0;  // the others do the same as one of them
  // Rank r's is number r modulo how many there are.
  std::vector<Script> scripts;
  int chunks = 1;  // of the buffer
  int rounds = 0;
};

// Looks whether each rank's schedule is that of the rank so many further on, and the network does not tell
// these from each other either. Looks at all ranks' schedules unless they are long: then at as many as there
// is time for, in no order. `alike`: whether ranks that do the same may be left out.
Repetition find_repetition(const Network& network, const std::function<Schedule(int)>& schedule_of,
                           bool alike);

}  // namespace ringreduce

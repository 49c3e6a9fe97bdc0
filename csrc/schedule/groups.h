// Groups of ranks, for algorithms that treat messages inside a group and between groups differently.
#pragma once

#include <vector>

#include "schedule/schedule.h"

namespace ringreduce {

using Members = std::vector<int>;

// The members of each of the place's groups, in its order; without groups, the ranks are cut into runs as
// long as the divisor of their number nearest to its square root.
std::vector<Members> members_by_group(const Place& place);

struct Position {
  int group = 0;
  int index = 0;  // in the group
};

Position position_of(int rank, const std::vector<Members>& groups);

}  // namespace ringreduce

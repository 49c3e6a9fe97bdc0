// Finds errors in schedules without running them.
#pragma once

#include <vector>

#include "schedule/schedule.h"

namespace ringreduce {

// Throws Refused unless the schedules are for one collective, each is for its own rank, and every round of
// each keeps the rules in schedule.h.
void check_form(const std::vector<Schedule>& all);

}  // namespace ringreduce

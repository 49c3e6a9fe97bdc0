// What can be seen wrong in schedules without running them.
#pragma once

#include <vector>

#include "schedule/schedule.h"

namespace ringreduce {

// Throws Refused unless the schedules are made for one collective, each is for its own rank, and every round
// of each keeps to the rules that schedule.h states.
void check_form(const std::vector<Schedule>& all);

}  // namespace ringreduce

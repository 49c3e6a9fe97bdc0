// Which of a rank's combinations make values that are sent, by this rank or by others that make the same
// ones.
#pragma once

#include <vector>

#include "schedule/schedule.h"

namespace ringreduce {

// By round: the chunks, ascending.
using PassedOn = std::vector<std::vector<int>>;

// The schedules of all ranks must be right together (check.h).
PassedOn passed_on(const std::vector<Schedule>& all, int rank);

}  // namespace ringreduce

// Proves that a set of schedules is correct, by running all ranks symbolically: no transport, no data.
#pragma once

#include <string>
#include <vector>

#include "schedule/schedule.h"

namespace ringreduce {

// Empty if the schedules of all ranks (index = rank) together are complete, consistent, well-formed and free
// of deadlock under rendezvous sends; otherwise one sentence that names the rank, the round and the error.
std::string check(const std::vector<Schedule>& all);

// The order in which correct schedules combine the ranks' values to each result. Order::any if nothing is
// combined, and for schedules that check() refuses.
Order order_of(const std::vector<Schedule>& all);

// Which of a rank's combinations make values that are sent, by this rank or by others that make the same
// ones: by round, the chunks in ascending order. The schedules of all ranks must be correct together.
using PassedOn = std::vector<std::vector<int>>;
PassedOn passed_on(const std::vector<Schedule>& all, int rank);

// The cost of one rank's schedule.
struct Cost {
  int rounds = 0;
  // Bytes that this rank sends, in units of the whole buffer (with chunks of equal size); a message to k
  // peers counts k times.
  double sent = 0;
  double received = 0;
};
Cost cost(const Schedule& schedule);

// The schedule in words, one line per round.
std::string describe(const Schedule& schedule);

}  // namespace ringreduce

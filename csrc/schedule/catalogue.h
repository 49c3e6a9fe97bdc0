// The one table of algorithms: names, functions, restrictions, cost.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "schedule/schedule.h"

namespace ringreduce {

struct Entry {
  Collective collective;
  std::string_view name;  // as users write it: "ring", "two_shot"
  Algorithm build;
  std::string_view rounds;        // formula for rounds, in n, as docs print it: "2(n-1)"
  std::string_view bytes;         // formula for the bytes sent by the busiest rank, in n and S
  std::string_view source;        // paper or standard
  std::string_view restrictions;  // "" if any world is allowed
  // Of its schedules for every world and root. Reproducible communicators run only Order::at_once.
  Order order = Order::any;
};

// All algorithms, grouped by collective.
std::span<const Entry> catalogue();

// Their names, separated by commas; of those that keep at least this order.
std::string names_of_algorithms(Collective collective, Order least = Order::any);

// The entry, or nullptr.
const Entry* find_algorithm(Collective collective, std::string_view name);

// One rank's schedule. Throws std::invalid_argument with the reason if there is no such algorithm or the
// place is invalid. Algorithms themselves rely on a valid place.
Schedule make_schedule(Collective collective, std::string_view name, const Place& place);

}  // namespace ringreduce

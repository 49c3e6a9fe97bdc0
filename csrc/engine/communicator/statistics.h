// The statistics of a rank's calls in a group, as plain values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "schedule/schedule.h"

namespace ringreduce {

class Communicator;

struct Statistics {
  struct Calls {
    std::string collective, algorithm;  // "send" or "recv", and none: messages
    std::uint64_t calls = 0, bytes = 0;
    double waited = 0;  // seconds
  };
  struct Waits {
    std::uint64_t count = 0;
    double total = 0, longest = 0;  // seconds
    std::uint64_t longest_in = 0;   // the number of the collective; 0: in none
  };

  std::uint64_t group = 0;
  int rank = 0, world = 1;
  std::string transport;
  std::vector<int> members;  // the ranks' names in the job; empty: their numbers
  bool closed = false;
  std::vector<Calls> calls;
  std::vector<Waits> waits;                     // by rank; the last: for none in particular
  std::map<std::string, std::uint64_t> counts;  // the transport's
};

// Keeps a communicator among those of the process, by a number, and its statistics when it is gone.
class Registered {
 public:
  explicit Registered(Communicator& communicator);
  ~Registered();
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;

  const std::int64_t number;

 private:
  const Communicator& communicator_;
};

}  // namespace ringreduce

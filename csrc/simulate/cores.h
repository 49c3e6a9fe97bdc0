// The cores of all nodes. Each does one thing at a time, and ranks beyond their number take turns.
#pragma once

#include <vector>

#include "simulate/moment.h"
#include "simulate/network.h"

namespace ringreduce {

class Cores {
 public:
  // `switching`: seconds from one rank to another on the same core.
  Cores(const Network& network, int ranks, double switching);

  // The moment up to which a rank's core is busy, not before this one. What the core does next is spent on
  // it.
  Moment& take(int rank, const Moment& ready);

 private:
  struct Core {
    Moment free;
    int rank = -1;  // that it has worked for
  };
  double switching_;
  std::vector<int> core_of_;  // by rank
  std::vector<Core> cores_;
};

}  // namespace ringreduce

// The cores of all nodes. Each does one thing at a time, and ranks beyond their number take turns.
#pragma once

#include <deque>
#include <vector>

#include "simulate/moment.h"
#include "simulate/network.h"

namespace ringreduce {

// Something for a rank's core to do from a moment on: to begin a slice's next round, or to take in one of its
// messages.
struct Task {
  int rank = 0, slice = 0;
  int work = -1;  // of the round; -1: it begins
  Moment ready;
};

class Cores {
 public:
  // `switching`: seconds from one rank to another on the same core.
  Cores(const Network& network, int ranks, double switching);

  int core_of(int rank) const { return core_of_[rank]; }
  const Moment& free(int core) const { return cores_[core].free; }
  // The moment up to which a rank's core is busy, not before this one. What the core does next is spent on
  // it.
  Moment& take(int rank, const Moment& ready);

  // Whether a task has to wait, which is kept then: a core that ranks share stays with one as long as there
  // is something to do for it.
  bool has_to_wait(const Task& task);
  bool has_waiting(int core) const { return !cores_[core].waiting.empty(); }
  // The next one of those that wait.
  Task next(int core);

 private:
  struct Core {
    Moment free;
    int ranks = 0;
    int rank = -1;  // that it has worked for
    std::deque<Task> waiting;
  };
  double switching_;
  std::vector<int> core_of_;  // by rank
  std::vector<Core> cores_;
};

}  // namespace ringreduce

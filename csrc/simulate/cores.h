// The cores of all nodes. Each does one thing at a time; if a node has more ranks than cores, they take
// turns.
#pragma once

#include <deque>
#include <vector>

#include "simulate/moment.h"
#include "simulate/network.h"

namespace ringreduce {

// Work for a rank's core from a moment on: beginning a slice's next round, or taking in one of its messages.
struct Task {
  int rank = 0, slice = 0;
  int work = -1;  // of the round; -1: the beginning
  Moment ready;
};

class Cores {
 public:
  // `switching`: seconds that a core takes to change between ranks.
  Cores(const Network& network, int ranks, double switching);

  int core_of(int rank) const { return core_of_[rank]; }
  const Moment& free(int core) const { return cores_[core].free; }
  // The moment until which a rank's core is busy, at least `ready`. What the core does next is added to it.
  Moment& take(int rank, const Moment& ready);

  // Whether a task must wait, and is kept. A core that ranks share stays with one rank while there is work
  // for it.
  bool has_to_wait(const Task& task);
  bool has_waiting(int core) const { return !cores_[core].waiting.empty(); }
  // The next waiting task.
  Task next(int core);

 private:
  struct Core {
    Moment free;
    int ranks = 0;
    int rank = -1;  // the rank that it worked for last
    std::deque<Task> waiting;
  };
  double switching_;
  std::vector<int> core_of_;  // by rank
  std::vector<Core> cores_;
};

}  // namespace ringreduce

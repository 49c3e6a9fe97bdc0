// The ranks of one communicator, which are threads of this process, and where their operations meet. As NCCL
// has it: messages between two ranks match in order, what is of one group goes on at the same time, and
// collectives come in the same order on all ranks.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "operation.h"

namespace ringreduce::emulated {

class Clique {
 public:
  explicit Clique(int world) : failures_(static_cast<std::size_t>(world)), aborted_(failures_.size()) {}

  void join();
  bool is_complete();
  // A group's operations of one rank: returns when they are over, or the rank is aborted.
  void run(int rank, const std::vector<Operation>& operations);
  void abort(int rank);
  void fail(int rank, nccl::Result result);
  nccl::Result failure(int rank);

 private:
  struct Posted {
    const Operation* operation;
    int rank;
    bool over = false;
  };
  struct Meeting {
    std::vector<Posted*> parts;  // by rank
    std::size_t here = 0;
  };
  struct Way {
    std::deque<Posted*> sends, receives;
  };

  void post(Posted& posted);
  void match(Way& way);
  void meet(Posted& posted);
  void withdraw(const Posted& posted);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t joined_ = 0;
  std::vector<nccl::Result> failures_;
  std::vector<char> aborted_;
  std::map<std::pair<int, int>, Way> ways_;  // from, to
  std::map<std::size_t, Meeting> meetings_;  // by number
  std::map<int, std::size_t> next_meeting_;  // by rank
};

}  // namespace ringreduce::emulated

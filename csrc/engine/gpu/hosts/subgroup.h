// A group of some of the ranks, which runs a part of their calls.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/communicator.h"
#include "transport/interface/errors.h"

namespace ringreduce {

class Subgroup {
 public:
  // `members`: by their numbers here, the numbers of its ranks among all.
  Subgroup(std::unique_ptr<Communicator> group, std::vector<int> members)
      : group_(std::move(group)), members_(std::move(members)) {}

  Communicator* operator->() const { return group_.get(); }
  // A failure of the group, in the numbers of all ranks.
  Failure in_all(const Failure& failure) const;
  // Throws that, unless all ranks still have a while to find it by themselves: they know what was really
  // called.
  void pass_on(const Failure& failure);

 private:
  std::unique_ptr<Communicator> group_;
  std::vector<int> members_;
  std::optional<Clock::time_point> failed_;
};

}  // namespace ringreduce

// The hosts of a network, and the links between each pair of them.
#pragma once

#include <vector>

#include "simulate/network.h"

namespace ringreduce {

// The ranks of each host; hosts are numbered in the order of their first ranks.
std::vector<std::vector<int>> members_of_hosts(const Network& network);

class Hosts {
 public:
  explicit Hosts(const Network& network);

  int count() const { return count_; }
  // The links that a message and its answer use; one of those that are always used together.
  const std::vector<int>& links(int a, int b) const {
    return links_[static_cast<std::size_t>(a) * static_cast<std::size_t>(count_) +
                  static_cast<std::size_t>(b)];
  }

  // The shortest spanning tree for these lengths of the links, as parents.
  std::vector<int> shortest_tree(const std::vector<double>& lengths) const;

 private:
  void leave_out_alike(const Network& network);

  int count_;
  std::vector<std::vector<int>> links_;
};

}  // namespace ringreduce

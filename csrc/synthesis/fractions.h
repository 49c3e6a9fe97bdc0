// The best packing of spanning trees if each may carry any fraction of the buffer, and the bound that proves
// it.
#pragma once

#include <limits>
#include <vector>

#include "synthesis/hosts.h"

namespace ringreduce {

using Tree = std::vector<int>;  // parents; -1 for the root

inline constexpr double near_enough = 1e-4;  // to the bound: where the search for trees ends

struct Fractional {
  std::vector<Tree> trees;
  std::vector<double> parts;  // of each tree
  double bound = std::numeric_limits<double>::max();
  std::vector<double> prices;  // by link; they prove the bound
};

// `rates`: of the links.
Fractional best_in_fractions(const Hosts& hosts, const std::vector<double>& rates);

}  // namespace ringreduce

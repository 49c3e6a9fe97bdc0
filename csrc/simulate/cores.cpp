#include "simulate/cores.h"

#include <utility>

namespace ringreduce {

Cores::Cores(const Network& network, int ranks, double switching) : switching_(switching) {
  std::vector<std::vector<int>> cores(network.nodes);
  std::vector<int> ranks_on(network.nodes);
  for (int rank = 0; rank < ranks; ++rank) {
    const int node = network.node_of[rank], place = ranks_on[node]++;
    const int most = network.cores.empty() ? 0 : network.cores[node];
    if (most == 0 || place < most) {
      cores[node].push_back(static_cast<int>(cores_.size()));
      cores_.emplace_back();
    }
    core_of_.push_back(cores[node][static_cast<std::size_t>(place) % cores[node].size()]);
  }
}

Moment& Cores::take(int rank, const Moment& ready) {
  Core& core = cores_[core_of_[rank]];
  core.free = later(ready, core.free);
  const int before = std::exchange(core.rank, rank);
  if (before >= 0 && before != rank) core.free.spend(switching_, Cause::change);
  return core.free;
}

}  // namespace ringreduce

#include "simulate/cores.h"

#include <algorithm>
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
    ++cores_[core_of_.back()].ranks;
  }
}

Moment& Cores::take(int rank, const Moment& ready) {
  Core& core = cores_[core_of_[rank]];
  core.free = later(ready, core.free);
  const int before = std::exchange(core.rank, rank);
  if (before >= 0 && before != rank) core.free.spend(switching_, Component::change);
  return core.free;
}

bool Cores::has_to_wait(const Task& task) {
  Core& core = cores_[core_of_[task.rank]];
  if (core.ranks == 1 || (core.waiting.empty() && core.free.at <= task.ready.at)) return false;
  core.waiting.push_back(task);
  return true;
}

Task Cores::next(int number) {
  Core& core = cores_[number];
  auto found = std::find_if(core.waiting.begin(), core.waiting.end(),
                            [&](const Task& task) { return task.rank == core.rank; });
  if (found == core.waiting.end()) found = core.waiting.begin();
  const Task task = *found;
  core.waiting.erase(found);
  return task;
}

}  // namespace ringreduce

#include "synthesis/hosts.h"

#include <limits>
#include <map>

namespace ringreduce {

std::vector<std::vector<int>> members_of_hosts(const Network& network) {
  std::vector<int> number(network.nodes, -1);
  std::vector<std::vector<int>> members;
  for (int rank = 0; rank < network.world(); ++rank) {
    int& host = number.at(network.node_of[rank]);
    if (host < 0) {
      host = static_cast<int>(members.size());
      members.emplace_back();
    }
    members[host].push_back(rank);
  }
  return members;
}

Hosts::Hosts(const Network& network) {
  std::vector<int> nodes;
  for (const auto& members : members_of_hosts(network)) nodes.push_back(network.node_of[members.front()]);
  count_ = static_cast<int>(nodes.size());
  Routes routes(network);
  links_.resize(nodes.size() * nodes.size());
  std::vector<int> path;
  for (std::size_t a = 0; a < nodes.size(); ++a) {
    for (std::size_t b = 0; b < nodes.size(); ++b) {
      if (a == b) continue;
      path.clear();
      routes.find(nodes[a], nodes[b], path);
      for (const std::size_t place : {a * nodes.size() + b, b * nodes.size() + a})
        links_[place].insert(links_[place].end(), path.begin(), path.end());
    }
  }
  leave_out_alike(network);
}

// Of links that are always used together, like the two directions of most cables, only the slowest counts.
void Hosts::leave_out_alike(const Network& network) {
  std::vector<std::vector<std::size_t>> pairs(network.links.size());
  for (std::size_t pair = 0; pair < links_.size(); ++pair) {
    for (const int link : links_[pair]) pairs[link].push_back(pair);
  }
  std::map<std::vector<std::size_t>, int> slowest;
  for (std::size_t link = 0; link < pairs.size(); ++link) {
    const auto [found, is_new] = slowest.try_emplace(pairs[link], static_cast<int>(link));
    if (network.links[link].rate < network.links[found->second].rate) found->second = static_cast<int>(link);
  }
  for (auto& links : links_) std::erase_if(links, [&](int link) { return slowest.at(pairs[link]) != link; });
}

// Prim's algorithm.
std::vector<int> Hosts::shortest_tree(const std::vector<double>& lengths) const {
  constexpr double far = std::numeric_limits<double>::max();
  std::vector<int> parents(count_, 0);
  std::vector<double> near(count_, far);
  std::vector<bool> is_in(count_);
  near[0] = 0;
  parents[0] = -1;
  for (int added = 0; added < count_; ++added) {
    int next = -1;
    for (int host = 0; host < count_; ++host) {
      if (!is_in[host] && (next < 0 || near[host] < near[next])) next = host;
    }
    is_in[next] = true;
    for (int host = 0; host < count_; ++host) {
      if (is_in[host]) continue;
      double length = 0;
      for (const int link : links(next, host)) length += lengths[link];
      if (length >= near[host]) continue;
      near[host] = length;
      parents[host] = next;
    }
  }
  return parents;
}

}  // namespace ringreduce

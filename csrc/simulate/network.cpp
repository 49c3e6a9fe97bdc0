#include "simulate/network.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace ringreduce {
namespace {

void demand(bool condition, const std::string& sentence) {
  if (!condition) throw std::invalid_argument(sentence);
}

}  // namespace

Routes::Routes(const Network& network)
    : network_(network), leaving_(network.nodes), arrivals_(network.nodes) {
  const auto demand_node = [&](int node, const char* what, std::size_t number) {
    demand(node >= 0 && node < network.nodes,
           std::string(what) + ' ' + std::to_string(number) + " names node " + std::to_string(node) +
               ", but the network has " + std::to_string(network.nodes) + " nodes");
  };
  for (std::size_t rank = 0; rank < network.node_of.size(); ++rank)
    demand_node(network.node_of[rank], "rank", rank);
  for (std::size_t i = 0; i < network.links.size(); ++i) {
    const Link& link = network.links[i];
    demand_node(link.from, "link", i);
    demand_node(link.to, "link", i);
    demand(link.rate > 0 && link.latency >= 0,
           "link " + std::to_string(i) + " must have a positive rate and a latency of at least 0");
    leaving_[link.from].push_back(static_cast<int>(i));
  }
}

const std::vector<int>& Routes::arrivals(int from) {
  std::vector<int>& found = arrivals_[from];
  if (!found.empty()) return found;
  found.assign(network_.nodes, -1);
  std::vector<int> queue = {from};
  for (std::size_t head = 0; head < queue.size(); ++head) {
    for (const int link : leaving_[queue[head]]) {
      const int next = network_.links[link].to;
      if (next == from || found[next] >= 0) continue;
      found[next] = link;
      queue.push_back(next);
    }
  }
  return found;
}

void Routes::find(int from, int to, std::vector<int>& path) {
  const auto first = static_cast<std::ptrdiff_t>(path.size());
  const std::vector<int>& last = arrivals(from);
  for (int node = to; node != from; node = network_.links[path.back()].from) {
    demand(last[node] >= 0,
           "no path leads from node " + std::to_string(from) + " to node " + std::to_string(to));
    path.push_back(last[node]);
  }
  std::reverse(path.begin() + first, path.end());
}

}  // namespace ringreduce

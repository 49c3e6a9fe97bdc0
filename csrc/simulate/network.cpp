#include "simulate/network.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

namespace ringreduce {
namespace {

void demand(bool condition, const std::string& sentence) {
  if (!condition) throw std::invalid_argument(sentence);
}

}  // namespace

Routes::Routes(const Network& network)
    : network_(network), leaving_(network.nodes), arrivals_(network.nodes) {
  const auto demand_node = [&](int node, const char* what, std::size_t number) {
    demand(node >= 0 && node < network.nodes, std::string(what) + ' ' + std::to_string(number) +
                                                  " names node " + std::to_string(node) + ", and there are " +
                                                  std::to_string(network.nodes));
  };
  for (std::size_t rank = 0; rank < network.node_of.size(); ++rank)
    demand_node(network.node_of[rank], "rank", rank);
  for (std::size_t i = 0; i < network.links.size(); ++i) {
    const Link& link = network.links[i];
    demand_node(link.from, "link", i);
    demand_node(link.to, "link", i);
    demand(link.rate > 0 && link.latency >= 0,
           "link " + std::to_string(i) + " has no rate, or a latency below 0");
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
  path.clear();
  const std::vector<int>& last = arrivals(from);
  for (int node = to; node != from; node = network_.links[path.back()].from) {
    demand(last[node] >= 0,
           "there is no way from node " + std::to_string(from) + " to node " + std::to_string(to));
    path.push_back(last[node]);
  }
  std::reverse(path.begin(), path.end());
}

Turned turned_links(const Network& network) {
  const auto same = [](bool condition) {
    demand(condition, "the network does not look the same when it is turned");
  };
  const int links = static_cast<int>(network.links.size()), world = network.world();
  Turned found{std::vector<int>(links, -1), std::vector<int>(links, 0)};
  if (network.period == 0) {
    std::iota(found.first.begin(), found.first.end(), 0);
    return found;
  }
  same(world % network.period == 0 && network.turned.size() == std::size_t(network.nodes));
  for (int rank = 0; rank < world; ++rank)
    same(network.turned[network.node_of[rank]] == network.node_of[(rank + network.period) % world]);
  std::map<std::pair<int, int>, int> by_ends;
  for (int i = 0; i < links; ++i) by_ends[{network.links[i].from, network.links[i].to}] = i;
  same(static_cast<int>(by_ends.size()) == links);
  for (int first = 0; first < links; ++first) {
    if (found.first[first] >= 0) continue;
    int link = first;
    for (int turn = 0; turn < world / network.period; ++turn) {
      same(found.first[link] < 0);
      found.first[link] = first;
      found.turns[link] = turn;
      const Link& was = network.links[link];
      const auto next = by_ends.find({network.turned[was.from], network.turned[was.to]});
      same(next != by_ends.end());
      const Link& is = network.links[link = next->second];
      same(is.rate == was.rate && is.latency == was.latency);
    }
    same(link == first);
  }
  return found;
}

}  // namespace ringreduce

#include "synthesis/packing.h"

#include <algorithm>

#include "synthesis/fractions.h"
#include "synthesis/hosts.h"

namespace ringreduce {
namespace {

constexpr int most_trees = 32;
constexpr int passes = 8;
constexpr double of_others = 0.02;   // the weight of the other links beside the busiest
constexpr double noticeable = 1e-2;  // of the highest price, weighted by the link's rate

// The load of trees on links.
class Loads {
 public:
  // `rates`: relative to the best total rate of the trees.
  explicit Loads(const std::vector<double>& rates) : rates_(rates), loads_(rates.size()) {}

  void add(const std::vector<int>& links, int times) {
    for (const int link : links) loads_[link] += times;
  }
  // For this many trees: 1 on a link that is as busy as the bound assumes.
  double busy(std::size_t link, int trees, double more = 0) const {
    return (loads_[link] + more) / (rates_[link] * trees);
  }
  double busiest(int trees) const {
    double most = 0;
    for (std::size_t link = 0; link < loads_.size(); ++link) most = std::max(most, busy(link, trees));
    return most;
  }
  // Weighs the busiest links most, but nearly as busy ones too, because they also hold messages up.
  double cost(int trees) const {
    double sum = 0;
    for (std::size_t link = 0; link < loads_.size(); ++link) sum += power(busy(link, trees));
    return sum / static_cast<double>(loads_.size());
  }
  // For each link, the cost of one more tree.
  std::vector<double> rises(int trees) const {
    std::vector<double> rises;
    for (std::size_t link = 0; link < loads_.size(); ++link)
      rises.push_back(power(busy(link, trees, 1)) - power(busy(link, trees)));
    return rises;
  }

  // The sixteenth power.
  static double power(double x) {
    x *= x;
    x *= x;
    x *= x;
    return x * x;
  }

 private:
  const std::vector<double>& rates_;
  std::vector<double> loads_;
};

struct Whole {
  std::vector<Tree> trees;
  double busiest = 0, cost = 0;
};

// A host and the hosts below it in a tree.
std::vector<bool> below(const Tree& tree, int top) {
  std::vector<bool> is_below(tree.size());
  is_below[top] = true;
  for (std::size_t host = 0; host < tree.size(); ++host) {
    std::vector<std::size_t> path;
    std::size_t up = host;
    for (; tree[up] >= 0 && !is_below[up]; up = tree[up]) path.push_back(up);
    if (!is_below[up]) continue;
    for (const std::size_t each : path) is_below[each] = true;
  }
  return is_below;
}

// Cuts off the part below a host, and joins it to the rest where that costs least. Returns whether the place
// is new.
bool rehang(Tree& tree, int top, const Hosts& hosts, Loads& loads, int count) {
  const int parent = tree[top];
  loads.add(hosts.links(top, parent), -1);
  const std::vector<double> rises = loads.rises(count);
  const auto rise = [&](int a, int b) {
    double sum = 0;
    for (const int link : hosts.links(a, b)) sum += rises[link];
    return sum;
  };
  double least = rise(top, parent) * (1 - 1e-6);
  int from = top, to = parent;
  const std::vector<bool> is_below = below(tree, top);
  for (int a = 0; a < hosts.count(); ++a) {
    for (int b = 0; is_below[a] && b < hosts.count(); ++b) {
      if (is_below[b]) continue;
      if (const double now = rise(a, b); now < least) {
        least = now;
        from = a;
        to = b;
      }
    }
  }
  loads.add(hosts.links(from, to), 1);
  if (from == top && to == parent) return false;
  for (int host = from, up = to; up != parent || host != top;) {
    const int next = tree[host];
    tree[host] = up;
    if (host == top) break;
    up = host;
    host = next;
  }
  return true;
}

// This many trees of equal weight: first those that the fractions round to, then others to fill up, and
// finally better ones, one edge at a time.
Whole in_whole_trees(const Fractional& fractional, const Hosts& hosts, const std::vector<double>& rates,
                     int count) {
  Whole whole;
  Loads loads(rates);
  double sum = 0;
  for (const double part : fractional.parts) sum += part;
  const auto put = [&](const Tree& tree) {
    whole.trees.push_back(tree);
    for (int host = 0; host < hosts.count(); ++host) {
      if (tree[host] >= 0) loads.add(hosts.links(host, tree[host]), 1);
    }
  };
  for (std::size_t i = 0; i < fractional.trees.size(); ++i) {
    const int times = static_cast<int>(fractional.parts[i] / sum * count + 1e-3);
    for (int k = 0; k < times; ++k) put(fractional.trees[i]);
  }
  while (static_cast<int>(whole.trees.size()) < count) put(hosts.shortest_tree(loads.rises(count)));
  bool better = true;
  for (int pass = 0; pass < passes && better; ++pass) {
    better = false;
    for (Tree& tree : whole.trees) {
      for (int host = 0; host < hosts.count(); ++host)
        better |= tree[host] >= 0 && rehang(tree, host, hosts, loads, count);
    }
  }
  whole.busiest = loads.busiest(count);
  whole.cost = whole.busiest + of_others * loads.cost(count);
  return whole;
}

// The same tree with its root in the middle, so that the farthest host is as few messages away as possible.
Tree from_the_middle(const Tree& tree) {
  const int count = static_cast<int>(tree.size());
  std::vector<std::vector<int>> neighbours(count);
  for (int host = 0; host < count; ++host) {
    if (tree[host] < 0) continue;
    neighbours[host].push_back(tree[host]);
    neighbours[tree[host]].push_back(host);
  }
  Tree parents;
  const auto spread = [&](int root) {
    parents.assign(count, -1);
    std::vector<int> queue = {root};
    for (int i = 0; i < static_cast<int>(queue.size()); ++i) {
      for (const int next : neighbours[queue[i]]) {
        if (next == parents[queue[i]]) continue;
        parents[next] = queue[i];
        queue.push_back(next);
      }
    }
    return queue.back();
  };
  const int end = spread(0), other_end = spread(end);
  std::vector<int> path = {other_end};
  while (parents[path.back()] >= 0) path.push_back(parents[path.back()]);
  spread(path[path.size() / 2]);
  return parents;
}

}  // namespace

Packing pack(const Network& network) {
  Packing packing;
  const auto count = static_cast<int>(members_of_hosts(network).size());
  if (count < 2 || count > most_hosts) return packing;
  const Hosts hosts(network);
  std::vector<double> rates;
  double fastest = 0;
  for (const Link& link : network.links) fastest = std::max(fastest, link.rate);
  for (const Link& link : network.links) rates.push_back(link.rate / fastest);
  const Fractional fractional = best_in_fractions(hosts, rates);
  packing.bound = fractional.bound * fastest;
  double most = 0;
  for (std::size_t link = 0; link < rates.size(); ++link)
    most = std::max(most, fractional.prices[link] * rates[link]);
  for (std::size_t link = 0; link < rates.size(); ++link) {
    if (fractional.prices[link] * rates[link] > noticeable * most)
      packing.limits.push_back(static_cast<int>(link));
    rates[link] /= fractional.bound;
  }
  for (int fewest = 1; fewest <= most_trees; fewest *= 2) {
    Whole best;
    for (int count = fewest; count < 2 * fewest && count <= most_trees; ++count) {
      Whole whole = in_whole_trees(fractional, hosts, rates, count);
      if (best.trees.empty() || whole.cost < best.cost) best = std::move(whole);
      if (best.busiest < 1 + near_enough) break;
    }
    Forest& forest = packing.forests.emplace_back();
    forest.rate = packing.bound / best.busiest;
    for (const Tree& tree : best.trees) forest.trees.push_back(from_the_middle(tree));
  }
  return packing;
}

std::vector<Tree> trees_of_ranks(const std::vector<Tree>& trees, const Network& network) {
  const std::vector<std::vector<int>> hosts = members_of_hosts(network);
  std::size_t most = 1;
  for (const auto& members : hosts) most = std::max(most, members.size());
  std::vector<Tree> of_ranks;
  while (!trees.empty() && of_ranks.size() < std::max(most, trees.size())) {
    for (const Tree& tree : trees) {
      const auto speaker = [&](std::size_t host) {
        const auto& members = hosts[host];
        return members[of_ranks.size() % members.size()];
      };
      Tree parents(network.world());
      for (std::size_t host = 0; host < hosts.size(); ++host) {
        for (const int rank : hosts[host]) parents[rank] = speaker(host);
        parents[speaker(host)] = tree[host] < 0 ? -1 : speaker(tree[host]);
      }
      of_ranks.push_back(std::move(parents));
    }
  }
  return of_ranks;
}

}  // namespace ringreduce

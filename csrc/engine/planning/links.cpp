#include "engine/planning/links.h"

#include <algorithm>
#include <numeric>

namespace ringreduce {
namespace {

constexpr double reference = 100e-6 * 118e6;  // bytes: latency times bandwidth where the tables were measured
constexpr double worth_it = 0.85;  // of the time in rank order; measurements vary by more than a smaller gain
constexpr int tried_all = 8;       // with up to this many hosts, all orders are compared

using Lap = std::vector<int>;

// Seconds per byte between hosts, indexed by their numbers.
struct Costs {
  int hosts = 0;
  std::vector<double> of;
  double operator()(int a, int b) const {
    return of[static_cast<std::size_t>(a) * static_cast<std::size_t>(hosts) + static_cast<std::size_t>(b)];
  }
};

// A ring is as slow as its slowest link. But if pairs of hosts share a link, it is slow because all of them
// were measured at once. Then the number of such links in the lap counts, which shows in the sum.
double time_of(const Lap& lap, const Costs& costs) {
  double worst = 0, sum = 0;
  for (std::size_t i = 0; i < lap.size(); ++i) {
    const double cost = costs(lap[i], lap[(i + 1) % lap.size()]);
    worst = std::max(worst, cost);
    sum += cost;
  }
  return worst + sum;
}

Lap best_of_all(Lap lap, const Costs& costs) {
  Lap best = lap;
  while (std::next_permutation(lap.begin() + 1, lap.end())) {
    if (lap[1] < lap.back() && time_of(lap, costs) < time_of(best, costs)) best = lap;
  }
  return best;
}

// Reverses stretches of the lap as long as that helps.
Lap improved(Lap lap, const Costs& costs) {
  double time = time_of(lap, costs);
  for (bool better = true; better;) {
    better = false;
    for (std::size_t from = 1; from < lap.size(); ++from) {
      for (std::size_t to = from + 2; to <= lap.size(); ++to) {
        Lap turned = lap;
        std::reverse(turned.begin() + static_cast<std::ptrdiff_t>(from),
                     turned.begin() + static_cast<std::ptrdiff_t>(to));
        const double other = time_of(turned, costs);
        if (other >= time * (1 - 1e-9)) continue;
        lap = turned;
        time = other;
        better = true;
      }
    }
  }
  return lap;
}

// Starts at each host in turn and continues to the nearest.
Lap best_of_some(const Costs& costs) {
  Lap best;
  for (int start = 0; start < costs.hosts; ++start) {
    Lap lap{start}, left;
    for (int host = 0; host < costs.hosts; ++host) {
      if (host != start) left.push_back(host);
    }
    while (!left.empty()) {
      const auto nearest = std::min_element(left.begin(), left.end(), [&](int a, int b) {
        return costs(lap.back(), a) < costs(lap.back(), b);
      });
      lap.push_back(*nearest);
      left.erase(nearest);
    }
    lap = improved(lap, costs);
    if (best.empty() || time_of(lap, costs) < time_of(best, costs)) best = lap;
  }
  std::rotate(best.begin(), std::find(best.begin(), best.end(), 0), best.end());
  return best;
}

// The median of the measured values.
double typical(std::vector<double> values) {
  std::erase_if(values, [](double value) { return !(value > 0); });
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

Links Links::among(const std::vector<int>& members) const {
  Links some;
  if (world == 0) return some;
  some.world = static_cast<int>(members.size());
  for (int from : members) {
    for (int to : members) {
      some.latency.push_back(latency[place(from, to)]);
      some.bandwidth.push_back(bandwidth[place(from, to)]);
    }
  }
  return some;
}

std::vector<int> speakers(const std::vector<int>& hosts, int world) {
  std::vector<int> first;
  for (int rank = 0; rank < world; ++rank) {
    const auto before = hosts.empty() ? hosts.end() : hosts.begin() + rank;
    if (hosts.empty() || std::find(hosts.begin(), before, hosts[rank]) == before) first.push_back(rank);
  }
  return first;
}

int opponent(int player, int players, int round) {
  const int even = players + players % 2, circle = even - 1;
  int other = 0;
  if (player == circle) {
    while ((2 * other - round) % circle != 0) ++other;
  } else {
    other = ((round - player) % circle + circle) % circle;
    if (other == player) other = circle;
  }
  return other < players ? other : -1;
}

std::vector<int> ring_order(const Links& links, const std::vector<int>& hosts) {
  const std::vector<int> nodes = speakers(hosts, links.world);
  Costs costs{static_cast<int>(nodes.size()), {}};
  if (costs.hosts < 4) return {};  // there is only one lap
  for (int a : nodes) {
    for (int b : nodes) {
      const double slower = std::min(links.bandwidth_of(a, b), links.bandwidth_of(b, a));
      if (a != b && !(slower > 0)) return {};
      costs.of.push_back(a == b ? 0 : 1 / slower);
    }
  }
  Lap by_number(nodes.size());
  std::iota(by_number.begin(), by_number.end(), 0);
  const Lap best = costs.hosts <= tried_all ? best_of_all(by_number, costs) : best_of_some(costs);
  if (time_of(best, costs) > worth_it * time_of(by_number, costs)) return {};
  std::vector<int> order;
  for (int node : best) {
    for (int rank = 0; rank < links.world; ++rank) {
      const bool here = hosts.empty() ? rank == nodes[node] : hosts[rank] == hosts[nodes[node]];
      if (here) order.push_back(rank);
    }
  }
  return order;
}

double pace(const Links& links) {
  const double times = typical(links.latency) * typical(links.bandwidth) / reference;
  return times >= 2 ? times : 1;  // measurements vary, so similar links use the same tables
}

double typical_latency(const Links& links) {
  return typical(links.latency);
}

double typical_rate(const Links& links) {
  return typical(links.bandwidth);
}

}  // namespace ringreduce

#include "synthesis/fractions.h"

#include <algorithm>
#include <utility>

#include "synthesis/linear_program.h"

namespace ringreduce {
namespace {

constexpr double tiny = 1e-9;
constexpr double smoothing = 0.8;

double length_of(const Tree& tree, const Hosts& hosts, const std::vector<double>& lengths) {
  double length = 0;
  for (int host = 0; host < hosts.count(); ++host) {
    if (tree[host] < 0) continue;
    for (const int link : hosts.links(host, tree[host])) length += lengths[link];
  }
  return length;
}

std::vector<double> column_of(const Tree& tree, const Hosts& hosts, std::size_t links) {
  std::vector<double> column(links);
  for (int host = 0; host < hosts.count(); ++host) {
    if (tree[host] < 0) continue;
    for (const int link : hosts.links(host, tree[host])) ++column[link];
  }
  return column;
}

}  // namespace

// Searches between the best prices so far and the program's own. Starting from the latter alone, it would try
// many trees that are short only because most links have no price yet.
Fractional best_in_fractions(const Hosts& hosts, const std::vector<double>& rates) {
  Fractional best;
  LinearProgram program(rates);
  for (const double rate : rates) best.prices.push_back(1 / rate);
  double share = 1;  // of the best prices
  for (std::size_t step = 0, most = 200 + 20 * rates.size(); step < most; ++step) {
    const std::vector<double>& now = program.prices();
    const auto lowest = std::min_element(now.begin(), now.end());
    if (*lowest < -tiny) {
      program.leave_over(static_cast<int>(lowest - now.begin()));
      continue;
    }
    std::vector<double> prices;
    for (std::size_t link = 0; link < rates.size(); ++link)
      prices.push_back(share * best.prices[link] + (1 - share) * std::max(now[link], 0.0));
    const Tree tree = hosts.shortest_tree(prices);
    const double length = length_of(tree, hosts, prices);
    double worth = 0, carried = 0;
    for (std::size_t link = 0; link < rates.size(); ++link) worth += rates[link] * prices[link];
    if (length > 0 && worth / length < best.bound) {
      best.bound = worth / length;
      for (double& price : prices) price /= length;  // makes the shortest tree 1 long
      best.prices = std::move(prices);
    }
    for (const double part : program.amounts()) carried += part;
    if (best.bound < carried * (1 + near_enough)) break;
    if (length_of(tree, hosts, now) < 1 - tiny) {
      program.use(column_of(tree, hosts, rates.size()));
      best.trees.push_back(tree);
      share = smoothing;
    } else if (share == 0) {
      break;
    } else {
      share = share > 0.1 ? share / 2 : 0;
    }
  }
  best.parts = program.amounts();
  return best;
}

}  // namespace ringreduce

// A network as the simulator sees it: nodes (hosts and switches) joined by one-way links. Ranks run on nodes.
#pragma once

#include <vector>

namespace ringreduce {

struct Link {
  int from = 0, to = 0;  // nodes
  double rate = 0;       // bytes per second
  double latency = 0;    // seconds
};

struct Network {
  int nodes = 0;
  std::vector<int> node_of;      // by rank
  std::vector<int> cores;        // by node: how many of its ranks can compute at once
  std::vector<double> slowness;  // by rank: the factor by which its core is slower; empty: 1
  std::vector<Link> links;       // of several shortest routes, the one whose links come first is used
  // The network looks the same from rank r and from rank r + period, for every r (modulo the world), if each
  // node is replaced by the one that `turned` names. 0: no such symmetry is known.
  int period = 0;
  std::vector<int> turned;

  int world() const { return static_cast<int>(node_of.size()); }
};

// The shortest routes, in hops. Those from a node are computed when the first of them is needed.
class Routes {
 public:
  // Throws std::invalid_argument if a link or a rank names an unknown node.
  explicit Routes(const Network& network);

  // Appends the links from one node to another; none if they are equal. Throws std::invalid_argument with
  // both nodes if no path exists.
  void find(int from, int to, std::vector<int>& path);

 private:
  const std::vector<int>& arrivals(int from);

  const Network& network_;
  std::vector<std::vector<int>> leaving_;   // by node: its links
  std::vector<std::vector<int>> arrivals_;  // by source and node: the link by which the route arrives, or -1
};

}  // namespace ringreduce

// A network as the simulator sees it: nodes (hosts and switches), joined by one-way links; ranks run on
// nodes.
#pragma once

#include <vector>

namespace ringreduce {

struct Link {
  int from = 0, to = 0;  // nodes
  double rate = 0;       // bytes a second
  double latency = 0;    // seconds
};

struct Network {
  int nodes = 0;
  std::vector<int> node_of;      // by rank
  std::vector<int> cores;        // by node: how many of its ranks can work at once
  std::vector<double> slowness;  // by rank: how many times longer its core takes; empty: 1
  std::vector<Link> links;       // of several shortest routes, that of the links named first is taken
  // The network looks the same from rank r and from rank r + period, for every r (modulo the world), when
  // each node is taken for the one that `turned` names. 0: not known to.
  int period = 0;
  std::vector<int> turned;

  int world() const { return static_cast<int>(node_of.size()); }
};

// The shortest routes, in hops. Those from one node are found when the first of them is asked for.
class Routes {
 public:
  // Throws std::invalid_argument if a link or a rank names a node that is not there.
  explicit Routes(const Network& network);

  // Adds the links from one node to another to a list: none if they are the same. Throws
  // std::invalid_argument, naming both, if there is no way.
  void find(int from, int to, std::vector<int>& path);

 private:
  const std::vector<int>& arrivals(int from);

  const Network& network_;
  std::vector<std::vector<int>> leaving_;   // by node: its links
  std::vector<std::vector<int>> arrivals_;  // by source and node: the link by which the route arrives, or -1
};

}  // namespace ringreduce

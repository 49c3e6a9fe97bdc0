// Measured links between hosts, and what follows from them: the order in which a ring visits the ranks, and
// the size up to which few rounds matter more than few bytes.
#pragma once

#include <cstddef>
#include <vector>

namespace ringreduce {

// Indexed by [from * world + to]; 0 for pairs that were not measured: within a host, or between hosts that
// were left out.
struct Links {
  int world = 0;                  // 0: nothing was measured
  std::vector<double> latency;    // seconds, one way
  std::vector<double> bandwidth;  // bytes per second
  // Bytes per second while all pairs of a round of the tournament send at the same time, which shows links
  // that pairs share. Empty if not measured.
  std::vector<double> together;

  double& latency_of(int from, int to) { return latency[place(from, to)]; }
  double& bandwidth_of(int from, int to) { return bandwidth[place(from, to)]; }
  double bandwidth_of(int from, int to) const { return bandwidth[place(from, to)]; }

  // The links among some of the ranks, which are renumbered.
  Links among(const std::vector<int>& members) const;

 private:
  std::size_t place(int from, int to) const {
    return static_cast<std::size_t>(from) * static_cast<std::size_t>(world) + static_cast<std::size_t>(to);
  }
};

// The first rank of each host, or every rank if `hosts` is empty. Links are measured between these.
std::vector<int> speakers(const std::vector<int>& hosts, int world);

// The opponent of a player in a round of a tournament; -1: none. By the circle method: the last player stays
// in place, and the others rotate.
int opponent(int player, int players, int round);
inline int rounds_of_tournament(int players) {
  return players + players % 2 - 1;
}

// The order in which a ring is fastest. The ranks of a host stay together, and the order minimises the time
// of the slowest link and of all links together. Empty if rank order is about as good, or if some links
// between hosts are unknown.
std::vector<int> ring_order(const Links& links, const std::vector<int>& hosts);

// How many times more bytes pass while a message travels than on the network of the tuning tables, at 1
// Gbit/s. Buffers up to so many times larger are faster with few rounds. At least 1.
double pace(const Links& links);
// The median of the measured ones, in seconds. 0 without any.
double typical_latency(const Links& links);
// Likewise, in bytes per second.
double typical_rate(const Links& links);

}  // namespace ringreduce

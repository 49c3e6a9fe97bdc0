// What the links between hosts are worth, as measured, and what follows from it: in which order a ring visits
// the ranks, and up to which size few rounds matter more than few bytes.
#pragma once

#include <cstddef>
#include <vector>

namespace ringreduce {

// By [from * world + to]; 0 where nothing was measured: within a host, or between hosts that were left out.
struct Links {
  int world = 0;                  // 0: nothing was measured at all
  std::vector<double> latency;    // seconds, one way
  std::vector<double> bandwidth;  // bytes a second
  // The same at which all pairs of a round of the tournament went on for a while, none of them alone: so what
  // pairs share shows. Empty where that was not measured.
  std::vector<double> together;

  double& latency_of(int from, int to) { return latency[place(from, to)]; }
  double& bandwidth_of(int from, int to) { return bandwidth[place(from, to)]; }
  double bandwidth_of(int from, int to) const { return bandwidth[place(from, to)]; }

  // Of some of the ranks, which are numbered anew.
  Links among(const std::vector<int>& members) const;

 private:
  std::size_t place(int from, int to) const {
    return static_cast<std::size_t>(from) * static_cast<std::size_t>(world) + static_cast<std::size_t>(to);
  }
};

// The first rank of each host, or where `hosts` is empty every rank: between these links are measured.
std::vector<int> speakers(const std::vector<int>& hosts, int world);

// Whom one of so many meets in a round of a tournament; -1: nobody, or one who is not there. The circle
// method: the last one stays where he is, and the others go round.
int opponent(int player, int players, int round);
inline int rounds_of_tournament(int players) {
  return players + players % 2 - 1;
}

// The order in which a ring is fastest: the ranks of a host stay together, and the slowest of its links, and
// all of them together, take the least time. Empty where going by number is about as good, or not all links
// between hosts are known.
std::vector<int> ring_order(const Links& links, const std::vector<int>& hosts);

// How many times more bytes pass while a message is on its way than on the network that the tuning tables
// were measured on, at 1 Gbit/s: so many times larger buffers are better off with few rounds. At least 1.
double pace(const Links& links);

}  // namespace ringreduce

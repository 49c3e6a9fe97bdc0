// Spanning trees, one for each chunk: its values are added on the way up to the tree's root, and the sums go
// down again. The best trees depend on the network: csrc/synthesis computes them, in the manner of
// Zhao et al., "ForestColl: Efficient Collective Communications on Heterogeneous Network Fabrics" (2024).
//
// Two sites of two ranks, {0, 1} and {2, 3}, joined by a slow trunk. Two trees let all four ranks share
// the work, with roots 1 and 2 (the arrows lead to the parents):
//
//   chunk 0:  0 -> 1 <- 2 <- 3        round 0    0 -> 1 and 3 -> 2 carry c0, 1 -> 0 and 2 -> 3 carry c1
//   chunk 1:  1 -> 0 <- 3 <- 2        round 1    2 -> 1 carries c0, 3 -> 0 carries c1
//                                     rounds 2 and 3 are the mirror image
//
// The trunk carries each chunk once in each direction, and each rank's link one and a half times the buffer.
//
// A rank takes a chunk from one child after the other, one per round. Which child comes first differs between
// trees, so that not all ranks send to the same one at once. Without given trees, there is one, a chain, of
// 2(n-1) rounds.
#include <algorithm>

#include "schedule/algorithms.h"
#include "schedule/combinators.h"
#include "schedule/steps.h"

namespace ringreduce {
namespace {

struct Edge {
  int height = 0;  // of the child
  int turn = 0;    // of the parent's children, chosen so that not all want the same one in one round
  int chunk = 0, child = 0, parent = 0;
  friend auto operator<=>(const Edge&, const Edge&) = default;
};

// For each rank, how many messages deep the tree below it is.
std::vector<int> heights(const std::vector<int>& parents) {
  std::vector<int> height(parents.size()), children(parents.size()), done;
  for (const int parent : parents) {
    if (parent >= 0) ++children[parent];
  }
  for (std::size_t rank = 0; rank < parents.size(); ++rank) {
    if (children[rank] == 0) done.push_back(static_cast<int>(rank));
  }
  for (std::size_t i = 0; i < done.size(); ++i) {
    const int parent = parents[done[i]];
    if (parent < 0) continue;
    height[parent] = std::max(height[parent], height[done[i]] + 1);
    if (--children[parent] == 0) done.push_back(parent);
  }
  return height;
}

// The edges, those nearest to the leaves first.
std::vector<Edge> upward(const std::vector<std::vector<int>>& trees) {
  std::vector<Edge> edges;
  for (std::size_t chunk = 0; chunk < trees.size(); ++chunk) {
    const std::vector<int> height = heights(trees[chunk]);
    const int n = static_cast<int>(height.size());
    for (int child = 0; child < n; ++child) {
      const int parent = trees[chunk][child];
      if (parent < 0) continue;
      edges.push_back({height[child], wrap(child - parent, n), static_cast<int>(chunk), child, parent});
    }
  }
  std::sort(edges.begin(), edges.end());
  return edges;
}

// The chunks of a round's single message to a peer.
Spans& sent(Round& round, int peer) {
  for (Send& send : round.sends) {
    if (send.peers.front() == peer) return send.chunks;
  }
  return round.sends.emplace_back(to(peer, {})).chunks;
}

// The chunks of a round's single message from a peer.
Spans& added(Round& round, int peer) {
  for (Recv& recv : round.recvs) {
    if (recv.peer == peer) return recv.chunks;
  }
  return round.recvs.emplace_back(reduce_from(peer, {})).chunks;
}

}  // namespace

Schedule spanning_trees_all_reduce(const Place& place) {
  const int n = place.world;
  std::vector<std::vector<int>> trees = place.trees;
  if (trees.empty()) {
    for (int rank = 0; rank < n; ++rank) trees.resize(1), trees.front().push_back(rank - 1);
  }
  Schedule up = begin(Collective::reduce, place, static_cast<int>(trees.size()));
  // By chunk and rank, the first round in which the rank has everything from below.
  std::vector<std::vector<int>> ready(trees.size(), std::vector<int>(n));
  int rounds = 0;
  for (const Edge& edge : upward(trees)) {
    int& parent_ready = ready[edge.chunk][edge.parent];
    const int round = std::max(ready[edge.chunk][edge.child], parent_ready);
    parent_ready = round + 1;
    rounds = std::max(rounds, round + 1);
    if (place.rank != edge.child && place.rank != edge.parent) continue;
    if (round >= static_cast<int>(up.rounds.size())) up.rounds.resize(round + 1);
    Round& now = up.rounds[round];
    append(place.rank == edge.child ? sent(now, edge.parent) : added(now, edge.child), {edge.chunk, 1});
  }
  up.rounds.resize(rounds);
  return then(up, mirror(up));
}

}  // namespace ringreduce

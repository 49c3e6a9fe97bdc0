// Spanning trees of a network's hosts along which an all-reduce is as fast as its links allow.
//
// Every chunk of the buffer has a tree: its values go up to the root, and the sums come down again. A tree
// therefore loads every link on the way from a host to its parent with the chunk's bytes, and every link on
// the way back. Up and down run at the same time, for different slices. The maximum that trees carry together
// is a linear program, with a variable for each tree and a row for each link. The tree that helps most is the
// shortest one if links are as long as their prices. The prices prove that no trees carry more: they give the
// bound, and the links with a price cause it.
//
// ForestColl (Zhao et al., arXiv:2402.06787) packs the trees of a reduce-scatter and those of an all-gather,
// in which every rank is the root of an equal part, by maximum flows. If links are unequal, an all-reduce can
// beat a reduce-scatter followed by an all-gather, because a host behind a slow link is never in the middle
// of a tree.
#pragma once

#include <vector>

#include "simulate/network.h"
#include "synthesis/fractions.h"

namespace ringreduce {

// Trees of hosts, which are numbered in rank order. Each carries an equal part.
struct Forest {
  std::vector<Tree> trees;
  double rate = 0;  // bytes of the buffer per second that they carry
};

struct Packing {
  // More trees come closer to the bound and share the work more evenly, but cut the buffer into more parts.
  // Has the best forest of one tree, of two or three, of four to seven, and so on.
  std::vector<Forest> forests;
  double bound = 0;         // bytes per second that no trees exceed
  std::vector<int> limits;  // the links that cause it
};

// Networks with more hosts take too long.
inline constexpr int most_hosts = 256;

// Throws std::invalid_argument with both nodes if no path leads from one host to another. Messages take the
// shortest routes in hops, as in the simulator. Returns no forests if there are fewer than two hosts, or too
// many.
Packing pack(const Network& network);

// The same trees between ranks. One rank of each host is in the tree, and the host's others are its children.
// Which one it is changes from tree to tree, and there are enough trees for every rank to have its turn.
std::vector<Tree> trees_of_ranks(const std::vector<Tree>& trees, const Network& network);

}  // namespace ringreduce

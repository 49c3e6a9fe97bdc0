// Spanning trees of a network's hosts along which an all-reduce is as fast as its links allow.
//
// Every chunk of the buffer has a tree: its values go up to the root, and the sums come down again. So a tree
// takes a chunk's bytes of every link on the way from a host to its parent, and of every link on the way
// back. Up and down go on at the same time, of different slices. What trees can carry together at most is a
// linear program: a variable for each tree, a row for each link. Of all trees, the one that helps most is the
// shortest where links are as long as their prices. The prices prove that no trees carry more: they are the
// bound, and the links that have a price are what it is due to.
//
// ForestColl (Zhao et al., arXiv:2402.06787) packs the trees of a reduce-scatter and those of an all-gather,
// of which every rank is the root of an equal part, by maximum flows. Where links are unequal, an all-reduce
// can do better than both, one after the other: a host behind a slow link is never in the middle of a tree.
#pragma once

#include <vector>

#include "simulate/network.h"
#include "synthesis/fractions.h"

namespace ringreduce {

// Trees of hosts, which are numbered in the order of their ranks. Each carries an equal part.
struct Forest {
  std::vector<Tree> trees;
  double rate = 0;  // bytes of the buffer a second that they carry
};

struct Packing {
  // More trees come nearer to the bound and share the work more evenly, but cut the buffer into more parts:
  // the best with one, two or three, four to seven, and so on.
  std::vector<Forest> forests;
  double bound = 0;         // bytes a second that no trees exceed
  std::vector<int> limits;  // the links that it is due to
};

// Networks of more hosts take too long.
inline constexpr int most_hosts = 256;

// Throws std::invalid_argument, naming both nodes, if there is no way from a host to another. Messages take
// the shortest routes in hops, as in the simulator. No forests if there are not two hosts, or too many.
Packing pack(const Network& network);

// The same trees, of ranks. One of each host's ranks is in the tree, and the others are its children; which
// one it is changes from tree to tree, and there are as many as every rank needs to have its turn.
std::vector<Tree> trees_of_ranks(const std::vector<Tree>& trees, const Network& network);

}  // namespace ringreduce

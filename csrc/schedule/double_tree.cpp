// Double binary tree. In one binary tree the inner ranks do all the work and the leaves idle. The buffer is
// therefore cut in two, and each half uses its own tree, such that no rank is an inner one in both.
//
// The first tree numbers n places in order (left subtree, root, right subtree) and fills the left side first,
// so inner nodes have odd places and leaves even ones. The second is the same tree, shifted by one place.
// Sums go up, level by level, and come down again. Four ranks, tree of chunk 0 and tree of chunk 1:
//
//         3               2           round 0    0 -> 1, 2 -> 1 carry c0; 3 -> 0, 1 -> 0 carry c1
//        /               /            round 1    1 -> 3 carries c0; 0 -> 2 carries c1
//       1               0             rounds 2 and 3 are the mirror image
//      / \             / \.
//     0   2           3   1
//
// Cost: 2 floor(log2 n) rounds; a rank sends at most 2 S: one half up in each tree and two halves down in
// one. The engine cuts it into slices, which keeps all links busy in both directions. Takes any world. After
// Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel
// Computing 2009.
#include <bit>
#include <utility>

#include "schedule/algorithms.h"
#include "schedule/combinators.h"
#include "schedule/steps.h"

namespace ringreduce {
namespace {

int floor_log2(int n) {
  return std::bit_width(static_cast<unsigned>(n)) - 1;
}

// The root of the subtree that fills places [first, last): its left subtree is complete and as deep as the
// places allow.
int root_of(int first, int last) {
  return first + (1 << floor_log2(last - first)) - 1;
}

// Chunk `tree` goes up the tree; rank r is at place r + tree.
Schedule up(const Place& place, int tree) {
  const int n = place.world, me = wrap(place.rank + tree, n), depth = floor_log2(n);
  const auto rank_at = [=](int where) { return wrap(where - tree, n); };
  const Spans chunk = {{tree, 1}};
  Schedule s = begin(Collective::reduce, place, 2);
  s.rounds.resize(depth);
  int first = 0, last = n, node = root_of(first, last), level = 0;
  for (; node != me; ++level) {
    (me < node ? last : first) = me < node ? node : node + 1;
    const int parent = std::exchange(node, root_of(first, last));
    if (node == me) s.rounds[depth - 1 - level].sends = {to(rank_at(parent), chunk)};
  }
  const auto add_child = [&](int from, int until) {
    if (from == until) return;
    s.rounds[depth - 1 - level].recvs.push_back(reduce_from(rank_at(root_of(from, until)), chunk));
  };
  add_child(first, me);
  add_child(me + 1, last);
  return s;
}

}  // namespace

Schedule double_tree_all_reduce(const Place& place) {
  const Schedule half = beside(up(place, 0), up(place, 1));
  return then(half, mirror(half));
}

}  // namespace ringreduce

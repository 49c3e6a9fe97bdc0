// Binomial tree. Ranks are counted from the root, v = rank - root modulo n. The parent of v is v without its
// lowest one bit, so children follow their parents at distances 1, 2, 4, ...
//
// Reduce, four ranks, root 0:
//   round 0    1 -> 0, 3 -> 2    0 holds r0 + r1, 2 holds r2 + r3
//   round 1    2 -> 0            0 holds (r0 + r1) + (r2 + r3)
// Broadcast is the mirror image, all-reduce both. Gather sends, instead of one sum, the chunks of the whole
// subtree (above: 3 -> 2 carries c3, 2 -> 0 carries c2 c3), and scatter is its mirror image.
//
// Cost: ceil(log2 n) rounds. Reduce: every rank but the root sends S once. Broadcast: the root sends
// ceil(log2 n) S. Gather: the busiest rank heads the largest subtree; scatter: the root sends (n-1)/n S.
// Takes any world and any root. After Thakur, Rabenseifner and Gropp, "Optimization of collective
// communication operations in MPICH", IJHPCA 2005.
#include <algorithm>

#include "schedule/algorithms.h"
#include "schedule/steps.h"

namespace ringreduce {
namespace {

// Sends everything towards the root; `subtree(v, size)` returns the chunks that stand for ranks v to v + size
// - 1.
template <class Subtree>
Schedule towards_root(Schedule s, bool reduce, Subtree subtree) {
  const int n = s.world, v = wrap(s.rank - s.root, n);
  for (int bit = 1; bit < n; bit *= 2) {
    Round& round = s.rounds.emplace_back();
    const int child = v + bit;
    if (v % (2 * bit) == bit) {
      round.sends = {to(wrap(s.rank - bit, n), subtree(v, std::min(bit, n - v)))};
    } else if (v % (2 * bit) == 0 && child < n) {
      round.recvs = {{subtree(child, std::min(bit, n - child)), wrap(s.rank + bit, n), reduce}};
    }
  }
  return s;
}

}  // namespace

Schedule tree_reduce(const Place& place) {
  return towards_root(begin(Collective::reduce, place, 1), true, [](int, int) { return Spans{{0, 1}}; });
}

Schedule tree_gather(const Place& place) {
  const int n = place.world, root = place.root;
  return towards_root(begin(Collective::gather, place, n), false,
                      [=](int v, int size) { return circular(v + root, size, n); });
}

}  // namespace ringreduce

// Chain: each rank passes the values on to the next, from the root to the last. No rank sends anything twice,
// so with many slices in flight a large buffer takes hardly longer than one copy.
//
// Broadcast, four ranks, root 0:
//   round 0    0 -> 1
//   round 1    1 -> 2
//   round 2    2 -> 3
// Reduce is the mirror image: sums travel back to the root. In a scan, each rank adds its own values to the
// sum that comes from the rank before, and passes the result on; an exscan passes all values to the next rank
// first, and the ranks from 1 on scan what they got.
//
// Cost: n - 1 rounds, S sent per rank; exscan: 2 S. Takes any world, and broadcast and reduce any root and
// any order of the ranks. After Pjesivac-Grbovic and others, "Performance analysis of MPI collective
// operations", Cluster Computing 2007.
#include "schedule/algorithms.h"
#include "schedule/steps.h"

namespace ringreduce {

Schedule chain_broadcast(const Place& place) {
  const int n = place.world;
  const Lap chain(place);
  const int p = chain.position_of(place.rank), v = wrap(p - chain.position_of(place.root), n);
  Schedule s = begin(Collective::broadcast, place, 1);
  s.rounds.resize(n - 1);
  if (v > 0) s.rounds[v - 1].recvs = {from(chain.at(p - 1), {{0, 1}})};
  if (v < n - 1) s.rounds[v].sends = {to(chain.at(p + 1), {{0, 1}})};
  return s;
}

Schedule chain_scan(const Place& place) {
  const int n = place.world, r = place.rank;
  Schedule s = begin(Collective::scan, place, 1);
  s.rounds.resize(n - 1);
  if (r > 0) s.rounds[r - 1].recvs = {reduce_from(r - 1, {{0, 1}})};
  if (r < n - 1) s.rounds[r].sends = {to(r + 1, {{0, 1}})};
  return s;
}

}  // namespace ringreduce

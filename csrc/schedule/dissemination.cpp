// Dissemination barrier: in round k every rank tells the rank 2^k places ahead that it, and all ranks that it
// has heard of, have arrived.
//
// Four ranks, seen from rank r (numbers modulo 4):
//   round 0    tells r + 1, hears of r - 1
//   round 1    tells r + 2, hears of r - 2 and, through it, of r - 3: all have arrived
//
// Cost: ceil(log2 n) rounds, messages without content. Takes any world. After Hensgen, Finkel and Manber,
// "Two algorithms for barrier synchronization", International Journal of Parallel Programming 1988.
#include "schedule/algorithms.h"
#include "schedule/steps.h"

namespace ringreduce {

Schedule dissemination_barrier(const Place& place) {
  const int n = place.world, r = place.rank;
  Schedule s = begin(Collective::barrier, place, 0);
  for (int distance = 1; distance < n; distance *= 2) {
    Round& round = s.rounds.emplace_back();
    round.sends = {to(wrap(r + distance, n), {})};
    round.recvs = {from(wrap(r - distance, n), {})};
  }
  return s;
}

}  // namespace ringreduce

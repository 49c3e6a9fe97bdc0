// Circulant: recursive halving on a circle. Seen from rank r, the chunks of ranks r, r + 1, r + 2, ... lie in
// front of it. In each round it sends the further half of the chunks that it still holds to the rank where
// that half begins, and receives as many from as far behind. Every rank does the same, so any world works.
//
// Reduce-scatter, four ranks, seen from rank r (numbers modulo 4):
//   round 0    sends c(r+2) c(r+3) to r + 2    adds c(r) c(r+1) of r - 2
//   round 1    sends c(r+1) to r + 1           adds c(r) of r - 1; c(r) is complete
// Five ranks hold 5, 3, 2, 1 chunks after each round: steps of 3, 2, 1.
//
// All-gather is the mirror image, all-reduce both.
//
// Cost: ceil(log2 n) rounds and (n-1)/n S sent per rank for each half: both optimal, for any world.
// After Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications in
// multiport message-passing systems", IEEE TPDS 1997, and Traeff, "Optimal, non-pipelined reduce-scatter and
// allreduce algorithms", arXiv:2410.14234.
#include "schedule/algorithms.h"
#include "schedule/steps.h"

namespace ringreduce {

Schedule circulant_reduce_scatter(const Place& place) {
  const int n = place.world, r = place.rank;
  Schedule s = begin(Collective::reduce_scatter, place, n);
  for (int held = n; held > 1;) {
    const int kept = (held + 1) / 2, given = held - kept;
    Round& round = s.rounds.emplace_back();
    round.sends = {to(wrap(r + kept, n), circular(r + kept, given, n))};
    round.recvs = {reduce_from(wrap(r - kept, n), circular(r, given, n))};
    held = kept;
  }
  return s;
}

}  // namespace ringreduce

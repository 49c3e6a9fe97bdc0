// Ring: every rank sends to the next rank only, and receives from the previous one only.
//
// Reduce-scatter. The sum of chunk c starts at rank c + 1, goes once round the ring, collects the values of
// each rank that it passes, and arrives complete at rank c. Four ranks; "c2 >" is a send to the next rank:
//
//              rank 0            rank 1            rank 2            rank 3
//   round 0    c3 >   c2 += r3   c0 >   c3 += r0   c1 >   c0 += r1   c2 >   c1 += r2
//   round 1    c2 >   c1 += r3   c3 >   c2 += r0   c0 >   c3 += r1   c1 >   c0 += r2
//   round 2    c1 >   c0 += r3   c2 >   c1 += r0   c3 >   c2 += r1   c0 >   c3 += r2
//              c0 complete       c1 complete       c2 complete       c3 complete
//
// All-gather is the mirror image: complete chunks go the other way round, and are copied, not added.
//
// Cost, for n ranks and a buffer of S bytes: n - 1 rounds and (n-1)/n S sent per rank for each half; the
// all-reduce is both halves. No algorithm can send less; the price is rounds that grow with n.
// Takes any world, and any order of the ranks, which matters if links differ in speed
// (engine/planning/links.h). After Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters
// of workstations", JPDC 2009.
#include "schedule/algorithms.h"
#include "schedule/combinators.h"
#include "schedule/steps.h"

namespace ringreduce {

Schedule ring_reduce_scatter(const Place& place) {
  const int n = place.world;
  const Lap ring(place);
  const int p = ring.position_of(place.rank);
  Schedule s = begin(Collective::reduce_scatter, place, n);
  for (int k = 0; k < n - 1; ++k) {
    Round& round = s.rounds.emplace_back();
    round.sends = {to(ring.at(p + 1), {{ring.at(p - k - 1), 1}})};
    round.recvs = {reduce_from(ring.at(p - 1), {{ring.at(p - k - 2), 1}})};
  }
  return s;
}

// Two rings at once, for links that carry both directions at full speed. Of 2n chunks, the first n go round
// as above and the other n the opposite way. It takes as many rounds and bytes as one ring, with half of the
// bytes in each direction.
Schedule bidirectional_ring_all_reduce(const Place& place) {
  const int n = place.world;
  const Lap ring(place);
  Place opposite = place;
  opposite.order.clear();
  std::vector<int> ranks;
  Spans second_half;
  for (int i = 0; i < n; ++i) {
    opposite.order.push_back(ring.at(-i));
    ranks.push_back(i);
    second_half.push_back({n + i, 1});
  }
  Schedule forward = all_reduce_of<ring_reduce_scatter>(place);
  forward.chunks = 2 * n;
  const Schedule empty = begin(Collective::all_reduce, place, 2 * n);
  return beside(forward, embed(all_reduce_of<ring_reduce_scatter>(opposite), empty, ranks, second_half));
}

}  // namespace ringreduce

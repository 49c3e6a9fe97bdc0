// All-to-all: chunk j of rank i and chunk i of rank j change places. All three work in one buffer.
//
// Pairwise: in round k, rank r swaps with rank k - r modulo n. Both ranks of a pair have the same k, so the
// chunk that goes out is the one that comes in. Four ranks:
//   round 0    1 <-> 3           (0 and 2 are their own partners: nothing to do)
//   round 1    0 <-> 1, 2 <-> 3
//   round 2    0 <-> 2           (1 and 3 rest)
//   round 3    0 <-> 3, 1 <-> 2
// Cost: n rounds (one less if round 0 has no pairs: n <= 2), (n-1)/n S sent per rank.
//
// Bruck: a chunk that has i ranks to go travels by the one bits of i, in hops of 1, 2, 4, ... Four ranks:
//   round 0    chunks with 1 or 3 to go hop from r to r + 1
//   round 1    chunks with 2 or 3 to go hop from r to r + 2
//   round 2    each is copied from scratch to its place
// Cost: ceil(log2 n) rounds and one of copies; about log2(n)/2 S sent per rank. For small buffers.
//
// Direct: everything at once. Cost: 1 round, (n-1)/n S.
//
// All take any world. After Thakur, Rabenseifner and Gropp, "Optimization of collective communication
// operations in MPICH", IJHPCA 2005, and Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for
// all-to-all communications in multiport message-passing systems", IEEE TPDS 1997.
#include "schedule/algorithms.h"
#include "schedule/steps.h"

namespace ringreduce {

Schedule pairwise_all_to_all(const Place& place) {
  const int n = place.world, r = place.rank;
  Schedule s = begin(Collective::all_to_all, place, n);
  for (int k = n > 2 ? 0 : 1; k < n; ++k) {
    Round& round = s.rounds.emplace_back();
    const int peer = wrap(k - r, n);
    if (peer == r) continue;
    round.sends = {to(peer, {{peer, 1}})};
    round.recvs = {from(peer, {{peer, 1}})};
  }
  return s;
}

Schedule bruck_all_to_all(const Place& place) {
  const int n = place.world, r = place.rank;
  Schedule s = begin(Collective::all_to_all, place, n);
  if (n == 1) return s;
  s.scratch = n;
  // A chunk with i ranks to go starts in chunk r + i. Where it arrives, it waits in scratch, under the number
  // that it gets if this is its last rank: that of the rank i places back.
  for (int bit = 1; bit < n; bit *= 2) {
    Spans out, in;
    for (int i = n - 1; i > 0; --i) {
      if ((i & bit) == 0) continue;
      const int waiting = n + wrap(r - i, n);
      const bool first_hop = i % bit == 0;
      append(out, {first_hop ? wrap(r + i, n) : waiting, 1});
      append(in, {waiting, 1});
    }
    Round& round = s.rounds.emplace_back();
    round.sends = {to(wrap(r + bit, n), out)};
    round.recvs = {from(wrap(r - bit, n), in)};
  }
  Round& arrival = s.rounds.emplace_back();
  if (r > 0) arrival.locals.push_back({{0, r}, {n, r}, false});
  if (r < n - 1) arrival.locals.push_back({{r + 1, n - 1 - r}, {n + r + 1, n - 1 - r}, false});
  return s;
}

Schedule direct_all_to_all(const Place& place) {
  Schedule s = begin(Collective::all_to_all, place, place.world);
  if (place.world == 1) return s;
  Round& round = s.rounds.emplace_back();
  for (const int peer : everyone_else(place)) {
    round.sends.push_back(to(peer, {{peer, 1}}));
    round.recvs.push_back(from(peer, {{peer, 1}}));
  }
  return s;
}

}  // namespace ringreduce

// Recursive doubling: in round k every rank swaps its whole buffer with the rank whose number differs in bit
// k, and adds. Fewest rounds; for small buffers, whose time is spent in rounds.
//
// Four ranks, one chunk:
//   round 0    0 <-> 1, 2 <-> 3    ranks 0 and 1 hold r0 + r1, ranks 2 and 3 hold r2 + r3
//   round 1    0 <-> 2, 1 <-> 3    all hold (r0 + r1) + (r2 + r3)
//
// Cost: log2(n) rounds, log2(n) S sent per rank. Other worlds are folded: two rounds and one S more.
// After Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH",
// IJHPCA 2005.
#include "schedule/algorithms.h"
#include "schedule/combinators.h"
#include "schedule/steps.h"

namespace ringreduce {
namespace {

Schedule power_of_two(const Place& place) {
  Schedule s = begin(Collective::all_reduce, place, 1);
  for (int bit = 1; bit < place.world; bit *= 2) {
    const int peer = place.rank ^ bit;
    Round& round = s.rounds.emplace_back();
    round.sends = {to(peer, {{0, 1}})};
    round.recvs = {reduce_from(peer, {{0, 1}})};
  }
  return s;
}

}  // namespace

Schedule recursive_doubling_all_reduce(const Place& place) {
  return fold(power_of_two, place);
}

}  // namespace ringreduce

// Swing: halving and doubling whose partners swing from one side to the other, which shortens the way of
// messages on a ring or torus network by a third. At step k a rank's partner is 1, -1, 3, -5, 11, ... ranks
// away, forwards for even ranks and backwards for odd ones.
//
// Reduce-scatter, four ranks. A rank sends the chunks that its partner, and the partner's later partners,
// will own:
//   round 0    0 <-> 1, 2 <-> 3    0 sends c1 c2, 1 sends c0 c3; 2 sends c0 c3, 3 sends c1 c2
//   round 1    0 <-> 3, 1 <-> 2    0 sends c3, 3 sends c0; 1 sends c2, 2 sends c1; all complete
// The mirror image gathers.
//
// Cost: 2 log2(n) rounds, 2(n-1)/n S sent per rank. Other worlds are folded: two rounds and one S more than
// the largest power of two in n. After De Sensi, Bonato, Saam and Hoefler, "Swing: short-cutting rings for
// higher bandwidth allreduce", NSDI 2024.
#include <algorithm>

#include "schedule/algorithms.h"
#include "schedule/combinators.h"
#include "schedule/steps.h"

namespace ringreduce {
namespace {

int partner(int rank, int step, int world) {
  int distance = 1;  // of step 0; then -1, 3, -5, 11, ...
  for (int k = 0; k < step; ++k) distance = 1 - 2 * distance;
  return wrap(rank % 2 == 0 ? rank + distance : rank - distance, world);
}

// The chunks that must come to this rank, or through it, from a step on.
Spans reached(int rank, int step, int world) {
  std::vector<int> ranks = {rank};
  for (; step < ceil_log2(world); ++step) {
    for (int i = 0, size = static_cast<int>(ranks.size()); i < size; ++i) {
      ranks.push_back(partner(ranks[i], step, world));
    }
  }
  std::sort(ranks.begin(), ranks.end());
  Spans spans;
  for (const int chunk : ranks) append(spans, {chunk, 1});
  return spans;
}

Schedule swing_power_of_two(const Place& place) {
  const int n = place.world, r = place.rank;
  Schedule half = begin(Collective::reduce_scatter, place, n);
  for (int step = 0; step < ceil_log2(n); ++step) {
    const int peer = partner(r, step, n);
    Round& round = half.rounds.emplace_back();
    round.sends = {to(peer, reached(peer, step + 1, n))};
    round.recvs = {reduce_from(peer, reached(r, step + 1, n))};
  }
  return then(half, mirror(half));
}

}  // namespace

Schedule swing_all_reduce(const Place& place) {
  return fold(swing_power_of_two, place);
}

}  // namespace ringreduce

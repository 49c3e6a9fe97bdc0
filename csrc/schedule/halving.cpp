// Recursive halving: the ranks split into a lower and an upper half. Each rank sends the chunks of the other
// half to its partner there and adds what it receives for its own half. Then each half continues by itself.
//
// Reduce-scatter, four ranks:
//   round 0    0 <-> 2, 1 <-> 3    ranks 0 and 1 send c2 c3 and keep c0 c1; ranks 2 and 3 the reverse
//   round 1    0 <-> 1             rank 0 sends c1 and has c0 complete; rank 1 sends c0 and has c1
//              2 <-> 3             rank 2 sends c3 and has c2 complete; rank 3 sends c2 and has c3
//
// An odd number of ranks splits with one more in the lower half. Its last rank has no partner of its own. It
// sends its chunks to the first rank of the upper half, which adds two messages at once, and receives none.
// This works for any world without folding.
//
// Cost: ceil(log2 n) rounds; every rank sends (n-1)/n S, because what it keeps shrinks from n chunks to one.
// For powers of two the all-gather, recursive doubling, is the exact reverse; otherwise the ranks that took
// two messages send two, and the busiest of them sends up to about 3/2 S. The all-reduce is both. After
// Rabenseifner, "Optimization of collective reduction operations", ICCS 2004.
#include "schedule/algorithms.h"
#include "schedule/steps.h"

namespace ringreduce {

Schedule halving_reduce_scatter(const Place& place) {
  const int r = place.rank;
  Schedule s = begin(Collective::reduce_scatter, place, place.world);
  for (int first = 0, count = place.world; count > 1;) {
    const Span lower{first, (count + 1) / 2}, upper{first + lower.count, count / 2};
    Round& round = s.rounds.emplace_back();
    if (r < upper.first) {
      const bool has_partner = r + lower.count < first + count;
      round.sends = {to(has_partner ? r + lower.count : upper.first, {upper})};
      if (has_partner) round.recvs = {reduce_from(r + lower.count, {lower})};
      count = lower.count;
    } else {
      round.sends = {to(r - lower.count, {lower})};
      round.recvs = {reduce_from(r - lower.count, {upper})};
      const bool takes_two = r == upper.first && lower.count > upper.count;
      if (takes_two) round.recvs.push_back(reduce_from(r - 1, {upper}));
      first = upper.first, count = upper.count;
    }
  }
  s.rounds.resize(ceil_log2(place.world));  // a smaller half finishes early
  return s;
}

}  // namespace ringreduce

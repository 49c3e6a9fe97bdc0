// Doubling: each rank holds the sum of a run of ranks that ends at itself, and in every round adds the run
// that ends just before it. Runs double. Few rounds; for small buffers, whose time is spent in rounds.
//
// Scan, four ranks:
//   round 0    0 -> 1 -> 2 -> 3     1 holds r0 + r1, 2 holds r1 + r2, 3 holds r2 + r3
//   round 1    0 -> 2, 1 -> 3       2 holds r0 + (r1 + r2), 3 holds (r0 + r1) + (r2 + r3)
//
// Exscan passes the values to the next rank first. Then every rank adds the values of the two before it at
// once, so that runs have 3 ranks, then 6, 12, and so on. Five ranks:
//   round 0    0 -> 1 -> 2 -> 3 -> 4               1 holds r0, 2 holds r1, 3 holds r2, 4 holds r3
//   round 1    1 -> 2, 3 and 2 -> 3, 4 and 3 -> 4  2 holds r0 + r1, 3 holds r0 + r1 + r2,
//                                                  4 holds r1 + r2 + r3
//   round 2    1 -> 4                              4 holds r0 + (r1 + r2 + r3)
//
// Cost: scan: ceil(log2 n) rounds, and rank 0 sends S in each. Exscan: q = ceil(log2(4(n-1)/3)) rounds, and
// rank 1 sends (q + 1) S. Takes any world. After Hillis and Steele, "Data parallel algorithms", CACM 1986,
// and Träff, "Communication round and computation efficient exclusive prefix-sums algorithms",
// arXiv:2507.04785, whose second round sends one value, a sum of two.
#include "schedule/algorithms.h"
#include "schedule/steps.h"

namespace ringreduce {
namespace {

// Every rank from `first` on sends its run to the ranks that are one and, if `twice`, two such distances
// ahead.
void add_run(Schedule& s, int first, int distance, bool twice) {
  Round& round = s.rounds.emplace_back();
  Send send{{{0, 1}}, {}};
  for (int ahead = distance; ahead <= (twice ? 2 : 1) * distance; ahead += distance) {
    if (s.rank >= first && s.rank + ahead < s.world) send.peers.push_back(s.rank + ahead);
    if (s.rank - ahead >= first) round.recvs.push_back(reduce_from(s.rank - ahead, {{0, 1}}));
  }
  if (!send.peers.empty()) round.sends = {send};
}

}  // namespace

Schedule doubling_scan(const Place& place) {
  Schedule s = begin(Collective::scan, place, 1);
  for (int run = 1; run < place.world; run *= 2) add_run(s, 0, run, false);
  return s;
}

Schedule doubling_exscan(const Place& place) {
  Schedule s = shift(begin(Collective::exscan, place, 1));
  for (int run = 1; run < place.world - 1; run *= run == 1 ? 3 : 2) add_run(s, 1, run, run == 1);
  return s;
}

}  // namespace ringreduce

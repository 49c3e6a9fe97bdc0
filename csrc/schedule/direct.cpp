// Direct: every rank sends directly to the ranks that need its values, all at once. One round for each half;
// for small buffers, and for ranks that can read their peers' memory in place.
//
// All-reduce in one shot, four ranks: every rank sends its whole buffer to the three others and adds the
// three that it receives, in rank order: ((r0 + r1) + r2) + r3 on every rank. In two shots: round 0 is a
// reduce-scatter (rank 0 sends c1 to 1, c2 to 2, c3 to 3, and adds the c0 of 1, 2, 3 to its own), round 1 an
// all-gather (rank 0 sends the complete c0 to 1, 2, 3, and gets c1, c2, c3). Scan: every rank sends its
// buffer to the ranks after it, and adds those of the ranks before it. Exscan: the same, one rank further.
//
// Cost: one shot: 1 round, (n-1) S. Two shots: 2 rounds, 2(n-1)/n S; half of both for reduce-scatter and
// all-gather alone. Broadcast: 1 round, the root sends (n-1) S; reduce: 1 round, every rank sends S; scatter
// and gather: 1 round, (n-1)/n S and S/n; scan: 1 round, rank 0 sends (n-1) S; exscan: 2 rounds, rank 1 sends
// (n-1) S; barrier: 1 round, n-1 messages without content. Takes any world and any root. The plain algorithms
// of the MPI standard's definitions.
#include "schedule/algorithms.h"
#include "schedule/steps.h"

namespace ringreduce {

Schedule one_shot_all_reduce(const Place& place) {
  Schedule s = begin(Collective::all_reduce, place, 1);
  if (place.world == 1) return s;
  Round& round = s.rounds.emplace_back();
  round.sends = {{{{0, 1}}, everyone_else(place)}};
  for (const int peer : everyone_else(place)) round.recvs.push_back(reduce_from(peer, {{0, 1}}));
  return s;
}

Schedule direct_reduce_scatter(const Place& place) {
  Schedule s = begin(Collective::reduce_scatter, place, place.world);
  if (place.world == 1) return s;
  Round& round = s.rounds.emplace_back();
  for (const int peer : everyone_else(place)) {
    round.sends.push_back(to(peer, {{peer, 1}}));
    round.recvs.push_back(reduce_from(peer, {{place.rank, 1}}));
  }
  return s;
}

Schedule direct_broadcast(const Place& place) {
  Schedule s = begin(Collective::broadcast, place, 1);
  if (place.world == 1) return s;
  Round& round = s.rounds.emplace_back();
  if (place.rank == place.root) {
    round.sends = {{{{0, 1}}, everyone_else(place)}};
  } else {
    round.recvs = {from(place.root, {{0, 1}})};
  }
  return s;
}

Schedule direct_barrier(const Place& place) {
  Schedule s = begin(Collective::barrier, place, 0);
  if (place.world == 1) return s;
  Round& round = s.rounds.emplace_back();
  round.sends = {{{}, everyone_else(place)}};
  for (const int peer : everyone_else(place)) round.recvs.push_back(from(peer, {}));
  return s;
}

Schedule direct_scatter(const Place& place) {
  Schedule s = begin(Collective::scatter, place, place.world);
  if (place.world == 1) return s;
  Round& round = s.rounds.emplace_back();
  if (place.rank == place.root) {
    for (const int peer : everyone_else(place)) round.sends.push_back(to(peer, {{peer, 1}}));
  } else {
    round.recvs = {from(place.root, {{place.rank, 1}})};
  }
  return s;
}

Schedule direct_scan(const Place& place) {
  Schedule s = begin(Collective::scan, place, 1);
  if (place.world == 1) return s;
  Round& round = s.rounds.emplace_back();
  Send send{{{0, 1}}, {}};
  for (int later = place.rank + 1; later < place.world; ++later) send.peers.push_back(later);
  if (!send.peers.empty()) round.sends = {send};
  for (int peer = 0; peer < place.rank; ++peer) round.recvs.push_back(reduce_from(peer, {{0, 1}}));
  return s;
}

}  // namespace ringreduce

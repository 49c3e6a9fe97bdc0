// Leaders: messages inside a group are cheap, such as those between ranks that share a core, and few should
// cross. Every rank sends its values to the last of its group, the leader, which adds its own. The leaders
// exchange these sums, and each completes one chunk and sends it to everyone.
//
// Four ranks, groups {0, 2} and {1, 3}, two chunks; leader 2 completes c0, leader 3 completes c1:
//   round 0    0 sends c1 to 2, 1 sends c0 to 3; the leaders add their own values
//   round 1    2 sends this sum of c1 to 3, 3 that of c0 to 2; 0 sends c0 to 2, 1 sends c1 to 3; each leader
//              adds what it gets and its own values at once
//   round 2    2 sends c0 to 0, 1, 3; 3 sends c1 to 0, 1, 2
//
// Between g groups, (g-1) S cross as sums and (g-1) S as results. In a two-shot all-reduce n(g-1)/g S cross
// as values.
//
// Cost: 3 rounds; a leader sends (n+g-2)/g S, and the others send S to it. Takes any world and any groups;
// without any, those of a core, or else see members_by_group. After Karonis et al., "Exploiting hierarchy in
// parallel computer networks to optimize collective operation performance", IPDPS 2000.
#include "schedule/algorithms.h"
#include "schedule/groups.h"
#include "schedule/steps.h"

namespace ringreduce {
namespace {

Spans all_but(int chunk, int chunks) {
  Spans others;
  for (int c = 0; c < chunks; ++c) {
    if (c != chunk) append(others, {c, 1});
  }
  return others;
}

void lead(const Place& place, const std::vector<Members>& groups, int group, Schedule& s) {
  const Span own{group, 1};
  for (const int member : groups[group]) {
    if (member == place.rank) continue;
    if (groups.size() > 1) s.rounds[0].recvs.push_back(reduce_from(member, all_but(group, s.chunks)));
    s.rounds[1].recvs.push_back(reduce_from(member, {own}));
  }
  for (int other = 0; other < s.chunks; ++other) {
    if (other == group) continue;
    s.rounds[1].sends.push_back(to(groups[other].back(), {{other, 1}}));
    s.rounds[1].recvs.push_back(reduce_from(groups[other].back(), {own}));
  }
  s.rounds[2].sends = {{{own}, everyone_else(place)}};
}

}  // namespace

Schedule leaders_all_reduce(const Place& given) {
  Place place = given;
  if (place.groups.empty()) place.groups = place.cores;
  const std::vector<Members> groups = members_by_group(place);
  const int group = position_of(place.rank, groups).group;
  const int leader = groups[group].back();
  Schedule s = begin(Collective::all_reduce, place, static_cast<int>(groups.size()));
  if (place.world == 1) return s;
  s.rounds.resize(3);
  if (place.rank == leader) {
    lead(place, groups, group, s);
  } else {
    if (groups.size() > 1) s.rounds[0].sends = {to(leader, all_but(group, s.chunks))};
    s.rounds[1].sends = {to(leader, {{group, 1}})};
  }
  for (int g = 0; g < s.chunks; ++g) {
    if (groups[g].back() != place.rank) s.rounds[2].recvs.push_back(from(groups[g].back(), {{g, 1}}));
  }
  return s;
}

}  // namespace ringreduce

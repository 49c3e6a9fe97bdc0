// Two levels: messages inside a group (such as a host) are cheap, and those between groups cross a slower
// network. The sums are first scattered inside each group. Then every local rank all-reduces its own part
// with its counterparts in the other groups, on all links of a host at once. Finally, the results are
// gathered inside. Each step is circulant.
//
// Four ranks, groups {0, 1} and {2, 3}, four chunks; the first of each group owns c0 c1, the second c2 c3:
//   round 0    0 <-> 1 and 2 <-> 3: 0 and 2 send c2 c3, 1 and 3 send c0 c1; owners hold their group's sums
//   round 1    0 <-> 2: 0 sends c1, 2 sends c0;   1 <-> 3: 1 sends c3, 3 sends c2; one complete chunk each
//   round 2    0 <-> 2 and 1 <-> 3: the complete chunks go back
//   round 3    0 <-> 1 and 2 <-> 3: the halves go back
//
// If the groups have an order, because their links differ, they form a ring in that order instead, and a rank
// exchanges messages with only two of its counterparts.
//
// Groups of different sizes have as many owners as the smallest has ranks. Other ranks take part in the
// scattering and gathering inside, and own nothing, so the traffic between groups does not grow.
//
// Cost, for groups of m ranks: 2 ceil(log2 m) + 2 ceil(log2(n/m)) rounds, 2(n-1)/n S sent per rank, of which
// only 2(n/m - 1)/n S leaves the group. Takes any world and any groups; without any, the ranks are cut into
// runs as long as the divisor of n nearest to its square root.
// After Thakur and Gropp, "Improving the performance of collective operations in MPICH", EuroPVM/MPI 2003.
#include <algorithm>
#include <cmath>
#include <map>

#include "schedule/algorithms.h"
#include "schedule/combinators.h"
#include "schedule/steps.h"

namespace ringreduce {
namespace {

using Members = std::vector<int>;

int default_group_size(int world) {
  int best = 1;
  for (int size = 1; size <= world; ++size) {
    const auto far = [=](int m) { return std::abs(m - std::sqrt(world)); };
    if (world % size == 0 && far(size) < far(best)) best = size;
  }
  return best;
}

std::vector<Members> members_by_group(const Place& place) {
  std::map<int, Members> by_id;
  const int size = default_group_size(place.world);
  const auto id_of = [&](int rank) { return place.groups.empty() ? rank / size : place.groups[rank]; };
  for (int rank = 0; rank < place.world; ++rank) {
    by_id[id_of(rank)].push_back(rank);
  }
  std::vector<Members> groups;
  for (int rank : place.order) {  // a group takes the place of its first member
    if (const auto found = by_id.find(id_of(rank)); found != by_id.end()) {
      groups.push_back(std::move(found->second));
      by_id.erase(found);
    }
  }
  for (auto& [id, members] : by_id) groups.push_back(std::move(members));
  return groups;
}

struct Position {
  int group = 0;
  int index = 0;  // in the group
};

Position position_of(int rank, const std::vector<Members>& groups) {
  for (int group = 0;; ++group) {
    const Members& members = groups[group];
    const auto found = std::find(members.begin(), members.end(), rank);
    if (found != members.end()) return {group, static_cast<int>(found - members.begin())};
  }
}

}  // namespace

Schedule two_level_all_reduce(const Place& place) {
  const std::vector<Members> groups = members_by_group(place);
  const int count = static_cast<int>(groups.size());
  const auto smaller = [](const Members& a, const Members& b) { return a.size() < b.size(); };
  const auto [smallest, largest] = std::minmax_element(groups.begin(), groups.end(), smaller);
  const int owners = static_cast<int>(smallest->size());
  const auto [group, index] = position_of(place.rank, groups);
  const Members& mine = groups[group];

  Spans parts, own_chunks;
  for (int i = 0; i < static_cast<int>(mine.size()); ++i) {
    parts.push_back({i * count, i < owners ? count : 0});
  }
  Members counterparts;
  for (int g = 0; g < count; ++g) {
    counterparts.push_back(groups[g][std::min(index, owners - 1)]);
    own_chunks.push_back({index * count + g, 1});
  }
  const Place inside_place{.world = static_cast<int>(mine.size()), .rank = index};
  const Place across_place{.world = count, .rank = group};
  const bool ring = !place.order.empty();

  Schedule inside = embed(circulant_reduce_scatter(inside_place),
                          begin(Collective::reduce_scatter, place, owners * count), mine, parts);
  inside.rounds.resize(ceil_log2(static_cast<int>(largest->size())));
  Schedule across = begin(Collective::all_reduce, place, owners * count);
  if (index < owners) {
    const Algorithm all_reduce =
        ring ? all_reduce_of<ring_reduce_scatter> : all_reduce_of<circulant_reduce_scatter>;
    across = embed(all_reduce(across_place), across, counterparts, own_chunks);
  }
  across.rounds.resize(ring ? 2 * (count - 1) : 2 * ceil_log2(count));
  return then(then(inside, across), mirror(inside));
}

}  // namespace ringreduce

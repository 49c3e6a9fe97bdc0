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
// Groups of different sizes have as many owners as the smallest has ranks. Other ranks only scatter and
// gather inside their group, and own nothing, so the traffic between groups does not grow.
//
// Cost, for groups of m ranks: 2 ceil(log2 m) + 2 ceil(log2(n/m)) rounds, 2(n-1)/n S sent per rank, of which
// only 2(n/m - 1)/n S leaves the group. Takes any world and any groups; without any, the ranks are cut into
// runs as long as the divisor of n nearest to its square root.
// After Thakur and Gropp, "Improving the performance of collective operations in MPICH", EuroPVM/MPI 2003.
#include <algorithm>

#include "schedule/algorithms.h"
#include "schedule/combinators.h"
#include "schedule/groups.h"
#include "schedule/steps.h"

namespace ringreduce {
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

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
// Reduce-scatter is the first half, with the chunk of each rank in its own part: rank r ends with chunk r.
// All-gather is its mirror image.
//
// If the groups have an order, because their links differ, they form a ring in that order instead, and a rank
// exchanges messages with only two of its counterparts.
//
// Groups of different sizes have as many owners as the smallest has ranks. Other ranks only scatter and
// gather inside their group, and own nothing, so the traffic between groups does not grow. A
// reduce-scatter of such groups is circulant over all ranks, because every rank must own its chunk.
//
// Cost of a half, for groups of m ranks: ceil(log2 m) + ceil(log2(n/m)) rounds, (n-1)/n S sent per rank, of
// which only (n/m - 1)/n S leaves the group. The all-reduce is both halves. Takes any world and any groups;
// without any, the ranks are cut into runs as long as the divisor of n nearest to its square root.
// After Thakur and Gropp, "Improving the performance of collective operations in MPICH", EuroPVM/MPI 2003.
#include <algorithm>
#include <numeric>

#include "schedule/algorithms.h"
#include "schedule/combinators.h"
#include "schedule/groups.h"
#include "schedule/steps.h"

namespace ringreduce {
namespace {

std::size_t smaller(const std::vector<Members>& groups) {
  return std::ranges::min(groups, {}, &Members::size).size();
}

std::size_t larger(const std::vector<Members>& groups) {
  return std::ranges::max(groups, {}, &Members::size).size();
}

// The i-th owner of group g ends with the sums of chunk i * groups + g. Each group has as many owners as the
// smallest has ranks.
Schedule scatter_to_owners(const Place& place, const std::vector<Members>& groups) {
  const int count = static_cast<int>(groups.size()), owners = static_cast<int>(smaller(groups));
  const auto [group, index] = position_of(place.rank, groups);
  const Members& mine = groups[group];
  const int size = static_cast<int>(mine.size());

  Spans parts, own;
  for (int i = 0; i < size; ++i) parts.push_back({i * count, i < owners ? count : 0});
  const Schedule none = begin(Collective::reduce_scatter, place, owners * count);
  Schedule s = embed(circulant_reduce_scatter({.world = size, .rank = index}), none, mine, parts);
  s.rounds.resize(ceil_log2(static_cast<int>(larger(groups))));

  const bool ring = !place.order.empty();
  const std::size_t rounds = s.rounds.size() + (ring ? count - 1 : ceil_log2(count));
  if (index < owners) {
    Members counterparts;
    for (const Members& each : groups) {
      own.push_back({index * count + static_cast<int>(counterparts.size()), 1});
      counterparts.push_back(each[index]);
    }
    const Algorithm scatter = ring ? ring_reduce_scatter : circulant_reduce_scatter;
    s = embed(scatter({.world = count, .rank = group}), s, counterparts, own);
  }
  s.rounds.resize(rounds);
  return s;
}

}  // namespace

Schedule two_level_all_reduce(const Place& place) {
  const std::vector<Members> groups = members_by_group(place);
  const Schedule half = scatter_to_owners(place, groups);
  return then(half, mirror(half));
}

Schedule two_level_reduce_scatter(const Place& place) {
  const std::vector<Members> groups = members_by_group(place);
  const std::size_t size = smaller(groups);
  if (size != larger(groups)) return circulant_reduce_scatter(place);
  Spans chunks;
  for (std::size_t owner = 0; owner < size; ++owner) {
    for (const Members& group : groups) chunks.push_back({group[owner], 1});
  }
  Members ranks(place.world);
  std::iota(ranks.begin(), ranks.end(), 0);
  return embed(scatter_to_owners(place, groups), begin(Collective::reduce_scatter, place, place.world), ranks,
               chunks);
}

}  // namespace ringreduce

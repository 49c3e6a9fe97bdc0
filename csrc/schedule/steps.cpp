#include "schedule/steps.h"

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

namespace ringreduce {

Schedule begin(Collective collective, const Place& place, int chunks) {
  return {.collective = collective,
          .world = place.world,
          .rank = place.rank,
          .root = place.root,
          .chunks = chunks,
          .scratch = 0,
          .rounds = {}};
}

Send to(int peer, Spans chunks) {
  return {std::move(chunks), {peer}};
}
Recv from(int peer, Spans chunks) {
  return {std::move(chunks), peer, false};
}
Recv reduce_from(int peer, Spans chunks) {
  return {std::move(chunks), peer, true};
}

Schedule shift(Schedule schedule) {
  if (schedule.world == 1) return schedule;
  const Spans all = {{0, schedule.chunks}};
  Round& round = schedule.rounds.emplace_back();
  if (schedule.rank + 1 < schedule.world) round.sends = {to(schedule.rank + 1, all)};
  if (schedule.rank > 0) round.recvs = {from(schedule.rank - 1, all)};
  return schedule;
}

int wrap(int value, int world) {
  return (value % world + world) % world;
}

int ceil_log2(int n) {
  return std::bit_width(static_cast<unsigned>(n - 1));
}

std::vector<int> everyone_else(const Place& place) {
  std::vector<int> peers;
  for (int peer = 0; peer < place.world; ++peer) {
    if (peer != place.rank) peers.push_back(peer);
  }
  return peers;
}

Spans circular(int first, int count, int world) {
  first = wrap(first, world);
  if (first + count <= world) return {{first, count}};
  return {{first, world - first}, {0, first + count - world}};
}

Lap::Lap(const Place& place) : order_(place.order) {
  if (!order_.empty()) return;
  std::map<int, std::vector<int>> by_group;
  for (int rank = 0; rank < place.world; ++rank) {
    by_group[place.groups.empty() ? 0 : place.groups[rank]].push_back(rank);
  }
  for (const auto& [group, members] : by_group) order_.insert(order_.end(), members.begin(), members.end());
}

int Lap::position_of(int rank) const {
  return static_cast<int>(std::find(order_.begin(), order_.end(), rank) - order_.begin());
}

void append(Spans& spans, Span next) {
  if (next.count == 0) return;
  if (!spans.empty() && spans.back().first + spans.back().count == next.first) {
    spans.back().count += next.count;
  } else {
    spans.push_back(next);
  }
}

}  // namespace ringreduce

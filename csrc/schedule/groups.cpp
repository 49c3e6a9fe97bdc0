#include "schedule/groups.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace ringreduce {
namespace {

int default_group_size(int world) {
  int best = 1;
  for (int size = 1; size <= world; ++size) {
    const auto far = [=](int m) { return std::abs(m - std::sqrt(world)); };
    if (world % size == 0 && far(size) < far(best)) best = size;
  }
  return best;
}

}  // namespace

std::vector<Members> members_by_group(const Place& place) {
  std::map<int, Members> by_id;
  const int size = place.groups.empty() ? default_group_size(place.world) : 1;
  const auto id_of = [&](int rank) { return place.groups.empty() ? rank / size : place.groups[rank]; };
  auto last = by_id.end();  // neighbours are usually in the same group
  for (int rank = 0; rank < place.world; ++rank) {
    if (last == by_id.end() || last->first != id_of(rank)) last = by_id.try_emplace(id_of(rank)).first;
    last->second.push_back(rank);
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

Position position_of(int rank, const std::vector<Members>& groups) {
  for (int group = 0;; ++group) {
    const Members& members = groups[group];
    const auto found = std::find(members.begin(), members.end(), rank);
    if (found != members.end()) return {group, static_cast<int>(found - members.begin())};
  }
}

}  // namespace ringreduce

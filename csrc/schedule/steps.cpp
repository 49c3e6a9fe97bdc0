#include "schedule/steps.h"

#include <bit>
#include <stdexcept>
#include <utility>

namespace ringreduce {

Schedule begin(Collective collective, const Place& place, int chunks) {
  const auto [world, rank, root, groups] = place;
  if (world < 1) throw std::invalid_argument("world must be at least 1, not " + std::to_string(world));
  const auto demand_rank = [world = world](const char* name, int value) {
    if (value >= 0 && value < world) return;
    throw std::invalid_argument(std::string(name) + " must be in [0, " + std::to_string(world) + "), not " +
                                std::to_string(value));
  };
  demand_rank("rank", rank);
  demand_rank("root", root);
  if (!groups.empty() && static_cast<int>(groups.size()) != world) {
    throw std::invalid_argument("groups must name a group for each of " + std::to_string(world) +
                                " ranks, not for " + std::to_string(groups.size()));
  }
  return {.collective = collective,
          .world = world,
          .rank = rank,
          .root = root,
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

void append(Spans& spans, Span next) {
  if (next.count == 0) return;
  if (!spans.empty() && spans.back().first + spans.back().count == next.first) {
    spans.back().count += next.count;
  } else {
    spans.push_back(next);
  }
}

}  // namespace ringreduce

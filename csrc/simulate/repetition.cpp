#include "simulate/repetition.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <stdexcept>
#include <unordered_map>
#include <utility>

namespace ringreduce {
namespace {

// Of different ranks' schedules: of a ring's many rounds, and of the chunks that algorithms divide.
constexpr std::size_t compared_posts = 2'000'000, compared_chunks = 10'000'000;

void same(bool condition) {
  if (!condition)
    throw std::invalid_argument("the network changes when its nodes are turned by the given permutation");
}

// A number of ranks that may differ, and the scripts of those compared so far.
struct Candidate {
  int ranks = 0;
  std::unordered_map<int, const Script*> first = {};

  bool allows(int rank, const Script& script) {
    const auto [found, is_new] = first.try_emplace(rank % ranks, &script);
    return is_new || *found->second == script;
  }
};

}  // namespace

Turned turned_links(const Network& network) {
  const int links = static_cast<int>(network.links.size()), world = network.world();
  Turned found{std::vector<int>(links, -1), std::vector<int>(links, 0)};
  if (network.period == 0) {
    std::iota(found.first.begin(), found.first.end(), 0);
    return found;
  }
  same(world % network.period == 0 && network.turned.size() == std::size_t(network.nodes));
  for (int rank = 0; rank < world; ++rank)
    same(network.turned[network.node_of[rank]] == network.node_of[(rank + network.period) % world]);
  std::map<std::pair<int, int>, int> by_ends;
  for (int i = 0; i < links; ++i) by_ends[{network.links[i].from, network.links[i].to}] = i;
  same(static_cast<int>(by_ends.size()) == links);
  for (int first = 0; first < links; ++first) {
    if (found.first[first] >= 0) continue;
    int link = first;
    for (int turn = 0; turn < world / network.period; ++turn) {
      same(found.first[link] < 0);
      found.first[link] = first;
      found.turns[link] = turn;
      const Link& was = network.links[link];
      const auto next = by_ends.find({network.turned[was.from], network.turned[was.to]});
      same(next != by_ends.end());
      const Link& is = network.links[link = next->second];
      same(is.rate == was.rate && is.latency == was.latency);
    }
    same(link == first);
  }
  return found;
}

Repetition find_repetition(const Network& network, const std::function<Schedule(int)>& schedule_of,
                           bool alike) {
  const int world = network.world();
  std::vector<Candidate> scripts, ranks;  // with repeating patterns
  for (int each = 1; each < world && world % each == 0; each *= 2) scripts.push_back({each});
  for (int each = alike ? network.period : 0; each > 0 && each < world && world % each == 0; each *= 2)
    ranks.push_back({each});
  std::vector<int> order(world);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin() + 1, order.end(), std::mt19937_64(world));
  std::map<int, Script> known;
  std::size_t posts = 0, chunks = 0;
  const auto is_enough = [&] {
    return (scripts.empty() && ranks.empty()) || posts > compared_posts || chunks > compared_chunks;
  };
  const auto look_at = [&](int rank) {
    if (is_enough() || known.contains(rank)) return;
    const Script& script = known.emplace(rank, Script(schedule_of(rank))).first->second;
    posts += script.posts();
    chunks += script.chunks();
    for (auto* candidates : {&scripts, &ranks})
      std::erase_if(*candidates, [&](Candidate& each) { return !each.allows(rank, script); });
  };
  for (const int rank : order) {
    if (is_enough()) break;
    // Few of a large world's ranks are looked at, so each comes with those that it should be equal to.
    std::vector<int> places = {0};
    for (const auto* candidates : {&scripts, &ranks}) {
      for (const Candidate& each : *candidates) places.push_back(each.ranks);
    }
    for (const int ahead : places) look_at((rank + ahead) % world);
  }
  Repetition found;
  found.ranks = ranks.empty() ? world : ranks.front().ranks;
  const int different = std::min(scripts.empty() ? world : scripts.front().ranks, found.ranks);
  for (int rank = 0; rank < different; ++rank) {
    const Schedule schedule = schedule_of(rank);
    found.chunks = std::max(schedule.chunks, 1);
    const Script& script = found.scripts.emplace_back(schedule);
    if (script.rounds() > 0) found.rounds = std::max(found.rounds, script.number(script.rounds() - 1) + 1);
  }
  return found;
}

}  // namespace ringreduce

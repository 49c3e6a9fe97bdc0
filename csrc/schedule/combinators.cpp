#include "schedule/combinators.h"

#include <algorithm>
#include <bit>
#include <stdexcept>

#include "schedule/steps.h"

namespace ringreduce {
namespace {

Collective opposite(Collective collective) {
  const CollectiveFacts& own = facts_of(collective);
  for (int i = 0; i < collective_count; ++i) {
    const CollectiveFacts& other = collective_facts[static_cast<std::size_t>(i)];
    if (own.before != own.after && other.before == own.after && other.after == own.before) {
      return static_cast<Collective>(i);
    }
  }
  throw std::invalid_argument(std::string(name_of(collective)) + " has no mirror image");
}

// Adds a receiver for these chunks, to the Send that carries them already if there is one, so that they are
// published once.
void add_receiver(std::vector<Send>& sends, const Spans& chunks, int peer) {
  const auto same = [&](const Send& send) { return send.chunks == chunks; };
  const auto send = std::find_if(sends.begin(), sends.end(), same);
  if (send == sends.end()) {
    sends.push_back(to(peer, chunks));
  } else {
    send->peers.insert(std::lower_bound(send->peers.begin(), send->peers.end(), peer), peer);
  }
}

}  // namespace

Schedule mirror(const Schedule& half) {
  Schedule image = half;
  image.collective = opposite(half.collective);
  image.rounds.clear();
  const bool reduce = reduces(image.collective);
  for (auto round = half.rounds.rbegin(); round != half.rounds.rend(); ++round) {
    Round& back = image.rounds.emplace_back();
    for (const Send& send : round->sends) {
      for (const int peer : send.peers) back.recvs.push_back({send.chunks, peer, reduce});
    }
    for (const Recv& recv : round->recvs) add_receiver(back.sends, recv.chunks, recv.peer);
    for (const Local& local : round->locals) back.locals.push_back({local.from, local.to, reduce});
  }
  return image;
}

Schedule then(Schedule first, const Schedule& second) {
  first.collective = Collective::all_reduce;
  first.scratch = std::max(first.scratch, second.scratch);
  first.rounds.insert(first.rounds.end(), second.rounds.begin(), second.rounds.end());
  return first;
}

Schedule beside(Schedule first, const Schedule& second) {
  const auto join = [](auto& messages, const auto& more, auto same) {
    for (const auto& message : more) {
      const auto found = std::find_if(messages.begin(), messages.end(),
                                      [&](const auto& other) { return same(other, message); });
      if (found == messages.end()) {
        messages.push_back(message);
      } else {
        for (const Span span : message.chunks) append(found->chunks, span);
      }
    }
  };
  first.rounds.resize(std::max(first.rounds.size(), second.rounds.size()));
  for (std::size_t k = 0; k < second.rounds.size(); ++k) {
    Round& round = first.rounds[k];
    const Round& more = second.rounds[k];
    join(round.sends, more.sends, [](const Send& a, const Send& b) { return a.peers == b.peers; });
    join(round.recvs, more.recvs,
         [](const Recv& a, const Recv& b) { return a.peer == b.peer && a.reduce == b.reduce; });
    round.locals.insert(round.locals.end(), more.locals.begin(), more.locals.end());
  }
  return first;
}

Schedule fold(Algorithm power_of_two, const Place& place) {
  const int n = place.world, r = place.rank;
  const int p = static_cast<int>(std::bit_floor(static_cast<unsigned>(n)));
  if (p == n) return power_of_two(place);
  const Schedule core = power_of_two({.world = p, .rank = r % p});
  const Spans all = {{0, core.chunks}};
  Schedule s = begin(Collective::all_reduce, place, core.chunks);
  s.rounds.resize(core.rounds.size() + 2);
  if (r >= p) {
    s.rounds.front().sends = {to(r - p, all)};
    s.rounds.back().recvs = {from(r - p, all)};
    return s;
  }
  std::copy(core.rounds.begin(), core.rounds.end(), s.rounds.begin() + 1);
  if (r + p < n) {
    s.rounds.front().recvs = {reduce_from(r + p, all)};
    s.rounds.back().sends = {to(r + p, all)};
  }
  return s;
}

Schedule exscan_by(Algorithm scan, const Place& place) {
  const int last = place.world - 1, r = place.rank;
  const Schedule inner = last > 0 ? scan({.world = last, .rank = std::max(r - 1, 0)}) : Schedule();
  Schedule s = shift(begin(Collective::exscan, place, inner.chunks));
  const std::size_t rounds = s.rounds.size() + inner.rounds.size();
  std::vector<int> ranks;
  std::vector<Span> blocks;
  for (int i = 0; i < last; ++i) ranks.push_back(i + 1);
  for (int i = 0; i < inner.chunks; ++i) blocks.push_back({i, 1});
  if (r > 0) s = embed(inner, s, ranks, blocks);
  s.rounds.resize(rounds);  // rank 0 is done, but counts them as the others do
  return s;
}

Schedule embed(const Schedule& inner, Schedule outer, const std::vector<int>& ranks,
               const std::vector<Span>& blocks) {
  const auto placed = [&](const Spans& spans) {
    Spans out;
    for (const auto& [first, count] : spans) {
      for (int chunk = first; chunk < first + count; ++chunk) append(out, blocks.at(chunk));
    }
    return out;
  };
  for (const Round& round : inner.rounds) {
    Round& out = outer.rounds.emplace_back();
    for (const Send& send : round.sends) {
      Send moved{placed(send.chunks), {}};
      for (const int peer : send.peers) moved.peers.push_back(ranks.at(peer));
      std::sort(moved.peers.begin(), moved.peers.end());
      if (!moved.chunks.empty()) out.sends.push_back(moved);
    }
    for (const Recv& recv : round.recvs) {
      Recv moved{placed(recv.chunks), ranks.at(recv.peer), recv.reduce};
      if (!moved.chunks.empty()) out.recvs.push_back(moved);
    }
  }
  return outer;
}

}  // namespace ringreduce

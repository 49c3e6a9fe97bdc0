#include "simulate/script.h"

#include <algorithm>
#include <utility>

namespace ringreduce {
namespace {

void close_round(std::vector<Post>& posts, std::vector<std::size_t>& ends) {
  const std::size_t begin = ends.empty() ? 0 : ends.back();
  std::stable_sort(posts.begin() + static_cast<std::ptrdiff_t>(begin), posts.end(),
                   [](const Post& a, const Post& b) { return a.ahead < b.ahead; });
  ends.push_back(posts.size());
}

}  // namespace

Script::Script(const Schedule& schedule) {
  const auto ahead = [&](int peer) { return (peer - schedule.rank + schedule.world) % schedule.world; };
  for (std::size_t number = 0; number < schedule.rounds.size(); ++number) {
    const Round& round = schedule.rounds[number];
    if (round.sends.empty() && round.recvs.empty() && round.locals.empty()) continue;
    numbers_.push_back(static_cast<int>(number));
    int sent = 0;
    for (const Send& send : round.sends) {
      const int chunks = chunks_in(send.chunks);
      sent += chunks;
      for (const int peer : send.peers) sends_.push_back({ahead(peer), chunks});
    }
    for (const Recv& recv : round.recvs)
      works_.push_back({ahead(recv.peer), chunks_in(recv.chunks), recv.reduce});
    for (const Local& local : round.locals) works_.push_back({0, local.to.count, local.reduce});
    heaviest_round_ = std::max(heaviest_round_, sent);
    close_round(sends_, sends_end_);
    close_round(works_, works_end_);
  }
}

std::size_t Script::chunks() const {
  std::size_t all = 0;
  for (const auto* posts : {&sends_, &works_}) {
    for (const Post& post : *posts) all += post.chunks;
  }
  return all;
}

bool Script::alike(int round, int other) const {
  return std::ranges::equal(sends(round), sends(other)) && std::ranges::equal(works(round), works(other));
}

void Script::leave_out(int first, int rounds) {
  if (rounds == 0) return;
  for (auto [posts, ends] : {std::pair{&sends_, &sends_end_}, std::pair{&works_, &works_end_}}) {
    const std::size_t begin = first == 0 ? 0 : (*ends)[first - 1], end = (*ends)[first + rounds - 1];
    posts->erase(posts->begin() + static_cast<std::ptrdiff_t>(begin),
                 posts->begin() + static_cast<std::ptrdiff_t>(end));
    ends->erase(ends->begin() + first, ends->begin() + first + rounds);
    for (std::size_t round = first; round < ends->size(); ++round) (*ends)[round] -= end - begin;
  }
  numbers_.erase(numbers_.begin() + first, numbers_.begin() + first + rounds);
}

}  // namespace ringreduce

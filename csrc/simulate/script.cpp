#include "simulate/script.h"

#include <algorithm>

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
  for (const Round& round : schedule.rounds) {
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

}  // namespace ringreduce

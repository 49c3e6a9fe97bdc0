#include "schedule/form.h"

#include <algorithm>
#include <utility>

#include "schedule/refuse.h"

namespace ringreduce {
namespace {

void check_head(const Schedule& s, const Schedule& first, int rank, int world) {
  if (s.world != world) refuse("rank ", rank, " has a schedule for a world of ", s.world, ", not ", world);
  if (s.rank != rank) refuse("the schedule at position ", rank, " belongs to rank ", s.rank);
  if (s.collective != first.collective) {
    refuse("rank ", rank, " has a schedule for ", name_of(s.collective), ", but rank 0 has one for ",
           name_of(first.collective));
  }
  if (s.root < 0 || s.root >= world)
    refuse("rank ", rank, " has root ", s.root, " in a world of ", world, " ranks");
  if (s.root != first.root) refuse("rank ", rank, " has root ", s.root, ", but rank 0 has root ", first.root);
  if (s.chunks != first.chunks) {
    refuse("rank ", rank, " has ", s.chunks, " chunks, but rank 0 has ", first.chunks);
  }
  if (s.scratch < 0) refuse("rank ", rank, " has ", s.scratch, " scratch chunks");
  const bool barrier = s.collective == Collective::barrier;
  if (barrier ? s.chunks + s.scratch != 0 : s.chunks < 1) {
    refuse(name_of(s.collective), " cannot have ", s.chunks, " + ", s.scratch, " chunks");
  }
  if (has_blocks(s.collective) && s.chunks != world) {
    refuse(name_of(s.collective), " needs a chunk per rank, ", world, ", not ", s.chunks);
  }
}

// Walks the rounds of one rank. Remembers for each chunk what wrote it last, and for each peer when it was
// last sent to and received from.
class FormOfOne {
 public:
  explicit FormOfOne(const Schedule& schedule)
      : s_(schedule),
        written_(s_.chunks + s_.scratch),
        sent_to_(s_.world, -1),
        received_from_(s_.world, -1) {}

  void check() {
    for (; round_ < static_cast<int>(s_.rounds.size()); ++round_) {
      const Round& round = s_.rounds[round_];
      for (const Send& send : round.sends) check_send(send);
      for (const Recv& recv : round.recvs) check_recv(recv);
      for (const Local& local : round.locals) check_local(local);
      for (const Local& local : round.locals) check_source(local);
    }
  }

 private:
  struct Write {
    int round = -1;
    const Recv* reducing = nullptr;  // null if it replaces, or belongs to a Local
    bool local = false;
  };

  template <class... Parts>
  [[noreturn]] void wrong(const Parts&... parts) const {
    refuse(at(s_.rank, round_), parts...);
  }

  void check_send(const Send& send) {
    check_chunks(send.chunks, "sends");
    if (send.peers.empty()) wrong("sends to no peer");
    for (const int peer : send.peers) check_peer(peer, sent_to_, "sends to");
    if (!std::is_sorted(send.peers.begin(), send.peers.end())) {
      wrong("sends to peers that are not in ascending order");
    }
  }

  void check_recv(const Recv& recv) {
    check_chunks(recv.chunks, "receives");
    check_peer(recv.peer, received_from_, "receives from");
    if (recv.reduce && recv.chunks.empty()) wrong("reduces a message without chunks");
    for (const Span& span : recv.chunks) write(span, {round_, recv.reduce ? &recv : nullptr, false});
  }

  void check_local(const Local& local) {
    check_chunks({local.from}, "copies from");
    check_chunks({local.to}, "copies to");
    if (local.from.count != local.to.count) {
      wrong("copies ", local.from.count, " chunks to a run of ", local.to.count);
    }
    for (int i = 0; i < local.to.count; ++i) {
      if (!same_length(s_, local.from.first + i, local.to.first + i)) {
        wrong("copies chunk ", local.from.first + i, " to chunk ", local.to.first + i,
              ", which may have another length");
      }
    }
    write(local.to, {round_, nullptr, true});
  }

  // A copy may read a chunk that a message overwrites, but not one that a copy of the same round writes:
  // their order would matter.
  void check_source(const Local& local) const {
    for (int chunk = local.from.first; chunk < local.from.first + local.from.count; ++chunk) {
      if (written_[chunk].round == round_ && written_[chunk].local) {
        wrong("copies from chunk ", chunk, " while copying to it");
      }
    }
  }

  void check_chunks(const std::vector<Span>& spans, const char* verb) const {
    const int end = s_.chunks + s_.scratch;
    if (spans.empty() && s_.collective != Collective::barrier) wrong(verb, " a message without chunks");
    for (const auto& [first, count] : spans) {
      if (count < 1) wrong(verb, " a run of ", count, " chunks");
      if (first < 0 || first >= end || count > end - first) {
        wrong(verb, " chunks ", first, " to ", static_cast<long>(first) + count - 1, ", but has only ", end);
      }
    }
  }

  void check_peer(int peer, std::vector<int>& last, const char* verb) const {
    if (peer < 0 || peer >= s_.world) wrong(verb, " rank ", peer, " in a world of ", s_.world, " ranks");
    if (peer == s_.rank) wrong(verb, " itself");
    if (std::exchange(last[peer], round_) == round_) wrong(verb, " rank ", peer, " twice");
  }

  void write(const Span& span, const Write& now) {
    for (int chunk = span.first; chunk < span.first + span.count; ++chunk) {
      const Write before = std::exchange(written_[chunk], now);
      if (before.round != round_) continue;
      if (!now.reducing || !before.reducing) wrong("writes chunk ", chunk, " twice");
      if (now.reducing == before.reducing) wrong("names chunk ", chunk, " twice in a message");
      if (now.reducing->chunks != before.reducing->chunks) {
        wrong("reduces messages from ranks ", before.reducing->peer, " and ", now.reducing->peer,
              " into chunk ", chunk, ", but they do not cover the same chunks");
      }
    }
  }

  const Schedule& s_;
  int round_ = 0;
  std::vector<Write> written_;
  std::vector<int> sent_to_, received_from_;
};

}  // namespace

void check_form(const std::vector<Schedule>& all) {
  if (all.empty()) refuse("there are no schedules to check");
  const int world = static_cast<int>(all.size());
  for (int rank = 0; rank < world; ++rank) {
    check_head(all[rank], all.front(), rank, world);
    FormOfOne(all[rank]).check();
  }
}

}  // namespace ringreduce

#include "schedule/symbolic_run.h"

#include <algorithm>

#include "schedule/refuse.h"

namespace ringreduce {
namespace {

std::vector<int> last_writes(const Schedule& s) {
  std::vector<int> last(s.chunks + s.scratch, -1);
  for (int k = 0; k < static_cast<int>(s.rounds.size()); ++k) {
    const auto mark = [&](int chunk) { last[chunk] = k; };
    for (const Recv& recv : s.rounds[k].recvs) each_chunk(recv.chunks, mark);
    for (const Local& local : s.rounds[k].locals) each_chunk(local.to, mark);
  }
  return last;
}

}  // namespace

SymbolicRun::SymbolicRun(const std::vector<Schedule>& all, bool commute)
    : all_(all),
      collective_(all.front().collective),
      world_(static_cast<int>(all.size())),
      expressions_(world_, all.front().chunks, commute) {
  for (const Schedule& plan : all_) ranks_.push_back(start(plan));
  for (int rank = 0; rank < world_; ++rank) enter_next_round(rank);
  while (!ready_.empty()) {
    const int rank = ready_.back();
    ready_.pop_back();
    finish_round(ranks_[rank]);
    enter_next_round(rank);
  }
  const auto finished = [](const Rank& rank) { return rank.finished(); };
  if (!std::all_of(ranks_.begin(), ranks_.end(), finished)) refuse_deadlock();
}

SymbolicRun::Rank SymbolicRun::start(const Schedule& plan) const {
  Rank rank;
  rank.plan = &plan;
  rank.chunks.assign(plan.chunks + plan.scratch, Expressions::undefined);
  for (int chunk = 0; chunk < plan.chunks; ++chunk) {
    if (starts_with_value(plan, chunk)) rank.chunks[chunk] = expressions_.leaf(chunk, plan.rank);
  }
  rank.last_write = last_writes(plan);
  if (plan.collective == Collective::barrier) {
    rank.heard.assign(world_, false);
    rank.heard[plan.rank] = true;
    rank.will_have_heard = rank.heard;
  }
  return rank;
}

void SymbolicRun::enter_next_round(int me) {
  Rank& rank = ranks_[me];
  ++rank.round;
  if (rank.finished()) return;
  const Round& round = rank.now();
  rank.arrived.assign(round.recvs.size(), {});
  rank.waiting = static_cast<int>(round.recvs.size());
  for (const Send& send : round.sends) rank.waiting += static_cast<int>(send.peers.size());
  if (rank.waiting == 0) ready_.push_back(me);
  for (const Send& send : round.sends) {
    for (const int peer : send.peers) meet(me, peer, {&send, 0});
  }
  for (std::size_t i = 0; i < round.recvs.size(); ++i) meet(round.recvs[i].peer, me, {nullptr, i});
}

// One end of a message has reached its round. At most one message from a rank to another is open, because no
// rank leaves a round with one, so the k-th send meets the k-th receive.
void SymbolicRun::meet(int from, int to, const Offer& mine) {
  const auto [place, is_first] = offers_.try_emplace(static_cast<std::uint64_t>(from) * world_ + to, mine);
  if (is_first) return;
  const Offer theirs = place->second;
  offers_.erase(place);
  transfer(from, to, mine.send ? *mine.send : *theirs.send, mine.send ? theirs.recv : mine.recv);
  for (const int rank : {from, to}) {
    if (--ranks_[rank].waiting == 0) ready_.push_back(rank);
  }
}

// Both ranks are in the message's round, so the sender's chunks still have their values from its beginning.
void SymbolicRun::transfer(int from, int to, const Send& send, std::size_t recv) {
  const Rank& sender = ranks_[from];
  Rank& receiver = ranks_[to];
  Values& values = receiver.arrived[recv];
  std::vector<int> sent;
  each_chunk(send.chunks, [&](int chunk) {
    if (sender.chunks[chunk] == Expressions::undefined) {
      refuse(at(from, sender.round), "sends chunk ", chunk, ", which holds nothing");
    }
    const int value = sender.chunks[chunk];
    values.push_back(value);
    sent.push_back(chunk);
    if (value >= static_cast<int>(sent_.size())) sent_.resize(value + 1 + value / 2);
    sent_[value] = true;
  });
  std::size_t expected = 0;
  each_chunk(receiver.now().recvs[recv].chunks, [&](int chunk) {
    // Between the user's own chunks this fails anyway, with a better error.
    const bool scratch = expected < sent.size() && std::max(sent[expected], chunk) >= sender.plan->chunks;
    if (scratch && !same_length(*sender.plan, sent[expected], chunk)) {
      refuse(at(to, receiver.round), "receives chunk ", sent[expected], " of rank ", from, " into chunk ",
             chunk, ", which may have another length");
    }
    ++expected;
  });
  if (values.size() != expected) {
    refuse(at(to, receiver.round), "expects ", expected, " chunks from rank ", from, ", which sends ",
           values.size(), " in its round ", sender.round);
  }
  if (collective_ == Collective::barrier) {
    for (int r = 0; r < world_; ++r) {
      if (sender.heard[r]) receiver.will_have_heard[r] = true;
    }
  }
}

// Reads everything before it writes anything.
void SymbolicRun::finish_round(Rank& rank) {
  std::vector<Write> writes;
  std::vector<Operand> operands;
  take_messages(rank, writes, operands);
  take_copies(rank, writes, operands);
  combine(rank, operands, writes);
  for (const auto& [chunk, value] : writes) rank.chunks[chunk] = value;
  rank.heard = rank.will_have_heard;
}

void SymbolicRun::take_messages(const Rank& rank, std::vector<Write>& writes,
                                std::vector<Operand>& operands) const {
  const std::vector<Recv>& recvs = rank.now().recvs;
  for (std::size_t i = 0; i < recvs.size(); ++i) {
    auto value = rank.arrived[i].begin();
    each_chunk(recvs[i].chunks, [&](int chunk) {
      if (recvs[i].reduce) {
        operands.push_back({chunk, recvs[i].peer, *value++});
        operands.push_back({chunk, rank.plan->rank, rank.chunks[chunk]});
      } else {
        writes.push_back({chunk, *value++});
      }
    });
  }
}

void SymbolicRun::take_copies(const Rank& rank, std::vector<Write>& writes,
                              std::vector<Operand>& operands) const {
  for (const auto& [to, from, reduce] : rank.now().locals) {
    for (int i = 0; i < to.count; ++i) {
      const int chunk = to.first + i, value = rank.chunks[from.first + i];
      if (value == Expressions::undefined) {
        refuse(at(rank.plan->rank, rank.round), "copies chunk ", from.first + i, ", which holds nothing");
      }
      if (reduce) {
        operands.push_back({chunk, rank.plan->rank, rank.chunks[chunk]});
        operands.push_back({chunk, world_, value});
      } else {
        writes.push_back({chunk, value});
      }
    }
  }
}

// Combines in rank order, with this rank's own value once, in its place.
void SymbolicRun::combine(Rank& rank, std::vector<Operand>& operands, std::vector<Write>& writes) {
  std::sort(operands.begin(), operands.end());
  operands.erase(std::unique(operands.begin(), operands.end()), operands.end());
  for (auto operand = operands.begin(); operand != operands.end();) {
    const int chunk = operand->chunk;
    if (rank.chunks[chunk] == Expressions::undefined) {
      refuse(at(rank.plan->rank, rank.round), "reduces into chunk ", chunk, ", which holds nothing");
    }
    int total = operand->value;
    while (++operand != operands.end() && operand->chunk == chunk) {
      total = expressions_.sum(total, operand->value);
    }
    // The engine divides an average here. From now on, adding anything would be wrong, and so would a missing
    // value.
    const bool divide =
        combines_all(collective_) && holds_result(*rank.plan, chunk) && rank.last_write[chunk] == rank.round;
    writes.push_back({chunk, divide ? expressions_.divided(total) : expressions_.rounded(total)});
    rank.made.push_back({rank.round, chunk, writes.back().value});
  }
}

void SymbolicRun::refuse_deadlock() const {
  for (int me = 0; me < world_; ++me) {
    if (ranks_[me].finished()) continue;
    const auto blocked_by = [&](int from, int to, int peer, const char* what) {
      if (!offers_.contains(static_cast<std::uint64_t>(from) * world_ + to)) return;
      const Rank& other = ranks_[peer];
      refuse(at(me, ranks_[me].round), "waits forever to ", what, " rank ", peer, ", which ",
             other.finished() ? "has finished" : "is in round " + std::to_string(other.round));
    };
    for (const Send& send : ranks_[me].now().sends) {
      for (const int peer : send.peers) blocked_by(me, peer, peer, "send to");
    }
    for (const Recv& recv : ranks_[me].now().recvs) blocked_by(recv.peer, me, recv.peer, "receive from");
  }
  refuse("the ranks block each other");  // not reached: a rank that has not finished waits for another one
}

void SymbolicRun::check_moved(const Rank& rank, int chunk) const {
  const Schedule& s = *rank.plan;
  const bool from_root = contents(collective_, true) == Holds::on_root;
  const bool swapped = contents(collective_, true) == Holds::exchanged;
  const int source = from_root ? s.root : chunk;
  if (rank.chunks[chunk] == expressions_.leaf(swapped ? s.rank : chunk, source)) return;
  refuse("rank ", s.rank, " must end with chunk ", swapped ? s.rank : chunk, " of rank ", source,
         " in chunk ", chunk, ", but ends with something else");
}

void SymbolicRun::check_results() {
  for (const Rank& rank : ranks_) {
    const auto missed = std::find(rank.heard.begin(), rank.heard.end(), false);
    if (missed == rank.heard.end()) continue;
    refuse("rank ", rank.plan->rank, " finishes without having heard from rank ",
           missed - rank.heard.begin());
  }
  each_result([this](const Rank& rank, int chunk) {
    if (!reduces(collective_)) return check_moved(rank, chunk);
    const int value = rank.chunks[chunk], r = rank.plan->rank;
    const std::string wrong =
        expressions_.why_incomplete(value, chunk, contributors_to(rank), combines_all(collective_));
    if (!wrong.empty()) refuse("rank ", r, ", chunk ", chunk, ": at the end it ", wrong);
    // Equal expressions mean equal bits.
    if (ends_alike(collective_) && value != ranks_.front().chunks[chunk]) {
      refuse("rank ", r, ", chunk ", chunk,
             ": adds or rounds in another order than rank 0, so their bits may differ");
    }
  });
}

Order SymbolicRun::order() {
  if (!reduces(collective_)) return Order::any;
  bool at_once = true, in_order = true;
  each_result([&](const Rank& rank, int chunk) {
    const int value = rank.chunks[chunk], ranks = contributors_to(rank);
    at_once = at_once && value == expressions_.in_rank_order(chunk, ranks, combines_all(collective_));
    in_order = in_order && (at_once || expressions_.is_in_order(value, chunk, ranks));
  });
  return at_once ? Order::at_once : in_order ? Order::kept : Order::any;
}

std::vector<std::vector<int>> SymbolicRun::passed_on(int rank) const {
  std::vector<std::vector<int>> chunks(all_[rank].rounds.size());
  for (const auto& [round, chunk, value] : ranks_[rank].made) {
    if (value < static_cast<int>(sent_.size()) && sent_[value]) chunks[round].push_back(chunk);
  }
  return chunks;
}

}  // namespace ringreduce

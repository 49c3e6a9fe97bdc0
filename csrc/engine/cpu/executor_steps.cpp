// The executor's work in each kind of step, except for small messages.
#include <algorithm>
#include <optional>

#include "engine/cpu/executor.h"
#include "reduce/stream.h"

namespace ringreduce {
namespace {

// Copies of fewer bytes go through the cache.
constexpr std::size_t past_cache_from = 4 << 10;
// Of what a rank keeps and sends on, in the first-level cache.
constexpr std::size_t block_bytes = 8 << 10;

}  // namespace

// --- sending -----------------------------------------------------------------------------------------------

bool Executor::send(Cursor& cursor, const Action& action) {
  SendState& state = cursor.state[&action - cursor.actions];
  if (state != pending) return true;  // a fused step has already sent it
  const Peers peers = action.receivers();
  if (lends(action)) {
    if (!lend(cursor, action)) return wait_for_room(cursor, peers);
    state = lent;
    cursor.clean = false;
    return true;
  }
  std::byte* room = transport_.reserve(cursor.lane, peers, action.bytes);
  if (!room) return wait_for_room(cursor, peers);
  coded() ? fill_coded(cursor, action, room) : fill(cursor, action, room);
  transport_.post(cursor.lane, peers, room, action.bytes, task_.contract);
  return true;
}

bool Executor::lend(Cursor& cursor, const Action& action) {
  const Move& move = *action.moves;
  std::byte* grant = nullptr;
  if (action.step->grants && reachable(Memory::output)) grant = cursor.at(Memory::output, move.target);
  if (!transport_.lend(cursor.lane, action.receivers(), cursor.source(move), action.bytes, task_.contract,
                       grant)) {
    return false;
  }
  ++cursor.lent;
  cursor.owes = true;
  for (int i = 0; i < action.peer_count; ++i) {
    const std::uint32_t ticket = transport_.sent(cursor.lane, action.peers[i]);
    cursor.tickets[action.step->tickets_begin + i] = ticket;
    cursor.last_lent[action.peers[i]] = {true, ticket};
  }
  return true;
}

void Executor::fill(const Cursor& cursor, const Action& action, std::byte* to) {
  CopyToReader* const copy = copy_to(action.receivers());
  for (const Move& move : action.runs()) {
    if (copy && !scales(move)) {
      (*copy)(to, cursor.source(move), move.bytes);
    } else {
      take(move, to, cursor.source(move), false);
    }
    to += move.bytes;
  }
}

// Reads this rank's own values, and scales them if requested. `afresh`: writes past the cache.
void Executor::take(const Move& move, void* target, const void* source, bool afresh) const {
  if (scales(move)) {
    task_.plan->scale(&target, 1, &source, 1, move.count, task_.factor);
  } else if (afresh && move.bytes >= past_cache_from) {
    stream(target, source, move.bytes);
  } else {
    copy_own(target, source, move.bytes);
  }
}

// The fused send's message can be written while it is computed: into the peers' own memory if all of them
// granted it, otherwise into the lane's arena.
Executor::Onward Executor::carry_on(const Cursor& cursor, const Action& action, bool granted) {
  const Step& step = *action.step;
  if (step.fused < 0 || action.bytes <= small_ || cursor.state[step.fused] != pending) return {};
  const Action& send = cursor.actions[step.fused];
  if (granted && step.pushable && action.runs().size() == 1) {
    int count = 0;
    for (int k = 0; k < action.peer_count; ++k) {
      if (action.peers[k] >= 0) targets_[++count] = messages_[k].grant;
    }
    return {count, nullptr};
  }
  if (lends(send)) return {};
  std::byte* const room = transport_.reserve(cursor.lane, send.receivers(), action.bytes);
  if (!room) return {};
  CopyToReader* const copy = copy_to(send.receivers());
  return {1, room, copy && copy->wants(action.bytes) ? copy : nullptr};
}

void Executor::carried(Cursor& cursor, const Action& action, const Onward& onward) {
  if (onward.targets == 0) return;
  const Peers peers = cursor.actions[action.step->fused].receivers();
  if (onward.room) {
    transport_.post(cursor.lane, peers, onward.room, action.bytes, task_.contract);
  } else if (!transport_.lend(cursor.lane, peers, nullptr, action.bytes, task_.contract, nullptr)) {
    return;  // no space to announce it: the send's own step will lend the result instead
  }
  cursor.state[action.step->fused] = posted;
  cursor.clean = false;
}

// --- combining ---------------------------------------------------------------------------------------------

bool Executor::combine(Cursor& cursor, const Action& action) {
  bool granted = !coded(), complete = true;
  for (int k = 0; k < action.peer_count; ++k) {
    if (action.peers[k] < 0) continue;
    if (arrived(cursor, action.peers[k], action.bytes, messages_[k])) {
      granted = granted && messages_[k].grant;
      continue;
    }
    complete = false;
    // Wait for a peer that needs our core: only this rank can help it.
    if (!transport_.shares_core(action.peers[k])) continue;
    waiting_for_ = action.peers[k];
    break;
  }
  if (!complete) return false;
  std::optional<Access> access;
  if (action.bytes >= lend_from) access.emplace(transport_);
  if (action.step->shared && granted && cursor.lent > 0) {
    combine_half(cursor, action);
    transport_.release(cursor.lane, action.peers[action.remote]);
    return true;
  }
  if (!fence(cursor, *action.step)) return false;
  const Onward onward = carry_on(cursor, action, granted);
  coded() ? combine_coded(cursor, action, onward.room) : combine_moves(cursor, action, onward);
  carried(cursor, action, onward);
  for (int k = 0; k < action.peer_count; ++k) {
    if (action.peers[k] >= 0) transport_.release(cursor.lane, action.peers[k]);
  }
  return true;
}

// Combines all sources in one pass per run, into the chunk's home and the fused message.
void Executor::combine_moves(const Cursor& cursor, const Action& action, const Onward& onward) {
  std::size_t done = 0;  // bytes of the message
  for (const Move& move : action.runs()) {
    if (onward.room) targets_[1] = onward.room + done;
    combine_move(cursor, action, move, done, onward);
    done += move.bytes;
  }
}

// Combines what lies `done` bytes into the messages, into the chunk's home and the targets after it.
void Executor::combine_move(const Cursor& cursor, const Action& action, const Move& move, std::size_t done,
                            const Onward& onward) {
  const void* own = cursor.source(move);
  void* const home = cursor.target(move);
  if (scales(move)) {
    take(move, home, own, false);
    own = home;
  }
  for (int k = 0; k < action.peer_count; ++k) {
    sources_[k] = action.peers[k] < 0 ? own : messages_[k].data + done;
  }
  targets_[0] = home;
  const int skip = onward.targets > 0 && !move.keep ? 1 : 0;
  if (onward.copy) {
    combine_and_copy(action.peer_count, move, *onward.copy);
  } else {
    void** const targets = &targets_[skip];
    const int count = 1 + onward.targets - skip;
    takes(action) ? combine_and_take(action, move, targets, count)
                  : apply(move, targets, count, sources_.data(), action.peer_count, move.count);
  }
}

// Whether a peer wants its lines taken over that this combination does not write.
bool Executor::takes(const Action& action) {
  bool any = false;
  for (int k = 0; k < action.peer_count; ++k) {
    if (action.peers[k] < 0) continue;
    Message& message = messages_[k];
    const bool wanted = message.take >= takes_from_ && message.grant != message.data;
    if (wanted && takers_[action.peers[k]].begin(message.take == Take::in_short_calls)) {
      any = true;
    } else {
      message.take = Take::none;
    }
  }
  return any;
}

void Executor::combine_and_take(const Action& action, const Move& move, void** targets, int target_count) {
  const std::size_t element = task_.plan->geometry.element;
  for (std::size_t left = move.count; left > 0;) {
    const std::size_t block = std::min(left, std::max(LineTaker::block_bytes / element, std::size_t{1}));
    const std::size_t bytes = block * element;
    apply(move, targets, target_count, sources_.data(), action.peer_count, block);
    for (int k = 0; k < action.peer_count; ++k) {
      if (action.peers[k] >= 0 && messages_[k].take != Take::none)
        takers_[action.peers[k]].take(sources_[k], bytes);
      sources_[k] = static_cast<const std::byte*>(sources_[k]) + bytes;
    }
    for (int t = 0; t < target_count; ++t) targets[t] = static_cast<std::byte*>(targets[t]) + bytes;
    left -= block;
  }
}

// The first rank combines the first half for both, the second rank the other. The peer's release of what it
// was lent says that its half is done.
void Executor::combine_half(const Cursor& cursor, const Action& action) {
  const Message& message = messages_[action.remote];
  const std::size_t element = task_.plan->geometry.element;
  const std::size_t line = std::max<std::size_t>(64 / element, 1);
  const std::size_t half = action.moves->count / 2 / line * line;
  const bool first = transport_.rank == 0;
  const std::size_t begin = first ? 0 : half * element;
  Move move = *action.moves;
  move.count = first ? half : move.count - half;
  move.bytes = move.count * element;
  move.source += begin;
  move.target += begin;
  targets_[1] = message.grant + begin;
  combine_move(cursor, action, move, begin, {1, nullptr});
}

// Combines into targets_[0], and copies each block from the first-level cache into targets_[1].
void Executor::combine_and_copy(int sources, const Move& move, CopyToReader& copy_onward) {
  const std::size_t element = task_.plan->geometry.element;
  for (std::size_t left = move.count; left > 0;) {
    const std::size_t block = std::min(left, std::max<std::size_t>(block_bytes / element, 1));
    const std::size_t bytes = block * element;
    apply(move, targets_.data(), 1, sources_.data(), sources, block);
    copy_onward(targets_[1], targets_[0], bytes);
    left -= block;
    for (int k = 0; k < sources; ++k) sources_[k] = static_cast<const std::byte*>(sources_[k]) + bytes;
    for (int k = 0; k < 2; ++k) targets_[k] = static_cast<std::byte*>(targets_[k]) + bytes;
  }
}

// --- receiving ---------------------------------------------------------------------------------------------

bool Executor::receive(Cursor& cursor, const Action& action) {
  const int peer = action.peers[0];
  Message& message = messages_[0];
  if (transport_.facts().queues && !coded()) offer_place(cursor, action);
  if (!arrived(cursor, peer, action.bytes, message)) return false;
  if (!fence(cursor, *action.step)) return false;
  if (!message.delivered) {
    std::optional<Access> access;
    if (action.bytes >= lend_from) access.emplace(transport_);
    const Onward onward = carry_on(cursor, action, false);
    coded() ? receive_coded(cursor, action, onward.room) : receive_moves(cursor, action, onward);
    carried(cursor, action, onward);
  }
  transport_.release(cursor.lane, peer);
  return true;
}

// Offers the place to which a message that has not arrived may come directly.
void Executor::offer_place(const Cursor& cursor, const Action& action) {
  if (action.bytes < lend_from || action.runs().size() != 1) return;
  const Move& move = *action.moves;
  if (!move.keep || !fence(cursor, *action.step)) return;
  if (action.step->fused >= 0 && !lends(cursor.actions[action.step->fused])) return;
  transport_.place(cursor.lane, action.peers[0], cursor.target(move), action.bytes, task_.contract);
}

void Executor::receive_moves(const Cursor& cursor, const Action& action, const Onward& onward) {
  const std::byte* from = messages_[0].data;
  std::byte* room = onward.room;
  for (const Move& move : action.runs()) {
    targets_[0] = cursor.target(move);
    targets_[1] = room;
    LineTaker& taker = takers_[action.peers[0]];
    if (!room && messages_[0].take >= takes_from_ && taker.begin(messages_[0].take == Take::in_short_calls)) {
      receive_and_take(move, from, taker);
    } else if (!room && move.to == Memory::output && afresh_ && move.bytes >= past_cache_from) {
      stream(targets_[0], from, move.bytes);
    } else if (onward.copy) {
      copy_both(move, from, *onward.copy);
    } else {
      const int skip = room && !move.keep ? 1 : 0;
      copy(&targets_[skip], (room ? 2 : 1) - skip, from, move.bytes);
    }
    from += move.bytes;
    if (room) room += move.bytes;
  }
}

void Executor::receive_and_take(const Move& move, const std::byte* from, LineTaker& taker) {
  const bool past = move.to == Memory::output && afresh_ && move.bytes >= past_cache_from;
  for (std::size_t done = 0; done < move.bytes; done += LineTaker::block_bytes) {
    const std::size_t bytes = std::min(move.bytes - done, LineTaker::block_bytes);
    void* const to = static_cast<std::byte*>(targets_[0]) + done;
    past ? stream(to, from + done, bytes) : copy(&to, 1, from + done, bytes);
    taker.take(from + done, bytes);
  }
}

// Copies each block into targets_[0], if the rank keeps it, and from the first-level cache into targets_[1].
void Executor::copy_both(const Move& move, const std::byte* from, CopyToReader& copy_onward) {
  std::byte* const home = static_cast<std::byte*>(targets_[0]);
  std::byte* const room = static_cast<std::byte*>(targets_[1]);
  for (std::size_t done = 0; done < move.bytes; done += block_bytes) {
    const std::size_t bytes = std::min(move.bytes - done, block_bytes);
    void* const kept = home + done;
    if (move.keep) copy(&kept, 1, from + done, bytes);
    copy_onward(room + done, from + done, bytes);
  }
}

// --- within the rank ---------------------------------------------------------------------------------------

bool Executor::local(Cursor& cursor, const Action& action) {
  if (!fence(cursor, *action.step)) return false;
  for (const Move& move : action.runs()) {
    const void* const source = cursor.source(move);
    void* target = cursor.target(move);
    if (action.step->kind == Step::Kind::local_combine) {
      const void* both[] = {cursor.at(move.own_in, move.own), source};
      apply(move, &target, 1, both, 2, move.count);
    } else if (target != source || scales(move)) {
      const bool afresh = move.to == Memory::output && afresh_;
      if (task_.plan->program->keeps_first && !afresh && !scales(move)) {
        copy_kept_(target, source, move.bytes);
      } else {
        take(move, target, source, afresh);
      }
    }
  }
  if (coded()) quantize(cursor, action);
  return true;
}

}  // namespace ringreduce

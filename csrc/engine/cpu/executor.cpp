#include "engine/cpu/executor.h"

#include <algorithm>
#include <atomic>

#include "reduce/stream.h"

namespace ringreduce {
namespace {

// Below this a pass over the data costs less than deciding how to save one.
constexpr std::size_t small_message = 2048;
// From here on it matters whether a message is written into the cache or past it.
constexpr std::size_t large_message = 16 << 10;
// A buffer of this size does not stay in the cache until the caller comes to use it.
constexpr std::size_t beyond_cache = 8 << 20;

std::size_t in_lines(std::size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

// Whether what arrives goes to memory that has not been read before: copied through the cache, it would be
// read in only to be overwritten.
bool writes_afresh(const Task& task) {
  if (task.bytes < beyond_cache) return false;
  const Collective collective = task.program->schedule.collective;
  if (task.geometry->narrow != Encoding::none)
    return false;  // the copies are of a slice, which is used again
  const bool in_place = task.input == task.output;
  return !in_place || !(reduces(collective) || collective == Collective::all_to_all);
}

}  // namespace

Executor::Executor(Transport& transport)
    : transport_(transport),
      cursors_(Transport::collective_lanes),
      messages_(transport.world + 1),
      sources_(transport.world + 1),
      targets_(transport.world + 1) {}

void Executor::start(const Task& task) {
  task_ = task;
  const Program& program = *task_.program;
  in_flight_ = static_cast<int>(std::min<std::size_t>(task_.lanes, task_.geometry->slices));
  std::size_t temp = 0, wide = 0;
  std::byte* temp_base = nullptr;
  if (program.uses_temp || narrow_arrays()) {
    temp = program.uses_temp ? in_lines(task_.geometry->temp_bytes(program.schedule)) : 0;
    wide = in_lines(task_.geometry->widened_bytes());
    const std::size_t needed = (temp + wide) * in_flight_ + 64;
    if (temp_.size() < needed) temp_.resize(needed);
    temp_base = temp_.data() + (64 - reinterpret_cast<std::uintptr_t>(temp_.data()) % 64) % 64;
  }
  running_ = in_flight_;
  const bool large = task_.bytes >= large_message;
  stream_ = large && transport_.far() ? large_message : ~std::size_t{0};
  afresh_ = writes_afresh(task_) ? large_message : ~std::size_t{0};
  small_ = task_.scale || task_.wire != Encoding::none ? 0 : std::min(small_message, task_.lend_from);
  if (task_.wire != Encoding::none) prepare_coded();
  for (int i = 0; i < in_flight_; ++i) {
    Cursor& cursor = cursors_[i];
    cursor.lane = task_.first_lane + i;
    cursor.temp = temp_base + (temp + wide) * i;
    cursor.wide = cursor.temp + temp;
    cursor.running = true;
    transport_.sense(cursor.lane, large);
    if (cursor.state.size() < program.steps.size()) cursor.state.resize(program.steps.size(), pending);
    if (cursor.tickets.size() < static_cast<std::size_t>(program.tickets))
      cursor.tickets.resize(program.tickets);
    begin_slice(cursor, i);
  }
}

void Executor::begin_slice(Cursor& cursor, std::size_t slice) {
  const bool last = slice + 1 == task_.geometry->slices;
  const Layout* layout = last ? task_.last_slice : task_.full;
  // Worked out for slice 0, the layout of a full slice serves all of them.
  const std::size_t shift = last || !task_.full ? 0 : slice * task_.geometry->slice * task_.geometry->element;
  if (!task_.full) {
    cursor.layout.resolve(*task_.program, *task_.geometry, slice);
    layout = &cursor.layout;
  }
  cursor.slice = slice;
  cursor.actions = cursor.action = layout->actions().data();
  cursor.end = cursor.actions + layout->actions().size();
  cursor.base[static_cast<int>(Memory::input)] = const_cast<std::byte*>(task_.input) + shift;
  cursor.base[static_cast<int>(Memory::output)] = task_.output + shift;
  cursor.base[static_cast<int>(Memory::temp)] = cursor.temp;
  if (narrow_arrays()) widen(cursor);
  cursor.lent = 0;
  if (!cursor.clean) {
    std::fill(cursor.state.begin(), cursor.state.end(), static_cast<std::uint8_t>(pending));
    cursor.clean = true;
  }
}

bool Executor::wait_for_room(const Cursor& cursor, Peers peers) {
  if (waiting_for_ >= 0) return false;
  return wait_for(transport_.in_the_way(cursor.lane, peers));
}

inline bool Executor::send_small(Cursor& cursor, const Action& action) {
  const Move& move = *action.moves;
  const std::byte* data = cursor.base[static_cast<int>(move.from)] + move.source;
  const Peers peers(action.peers, static_cast<std::size_t>(action.peer_count));
  return transport_.send(cursor.lane, peers, data, action.bytes, task_.contract) ||
         wait_for_room(cursor, peers);
}

inline bool Executor::combine_small(Cursor& cursor, const Action& action) {
  const int peer = action.peers[action.remote];
  Message message;
  if (!arrived(cursor, peer, action.bytes, message)) return false;
  const Move& move = *action.moves;
  const void* sources[2];
  sources[action.remote] = message.data;
  sources[1 - action.remote] = cursor.base[static_cast<int>(move.from)] + move.source;
  void* target = cursor.base[static_cast<int>(move.to)] + move.target;
  (move.last ? task_.last : task_.combine)(&target, 1, sources, 2, move.count, task_.divide);
  transport_.release(cursor.lane, peer);
  return true;
}

inline bool Executor::receive_small(Cursor& cursor, const Action& action) {
  const int peer = action.peers[0];
  Message message;
  if (!arrived(cursor, peer, action.bytes, message)) return false;
  const Move& move = *action.moves;
  void* target = cursor.base[static_cast<int>(move.to)] + move.target;
  copy(&target, 1, message.data, move.bytes);
  transport_.release(cursor.lane, peer);
  return true;
}

bool Executor::advance() {
  bool moved = false;
  waiting_for_ = -1;
  for (int i = 0; i < in_flight_; ++i) {
    if (cursors_[i].running) moved |= advance(cursors_[i]);
  }
  return moved;
}

bool Executor::advance(Cursor& cursor) {
  bool moved = false;
  while (true) {
    for (; cursor.action != cursor.end; ++cursor.action, moved = true) {
      const Action& action = *cursor.action;
      if (action.skip) continue;
      const bool small = action.simple && action.bytes <= small_;
      const auto coded = [&] { return task_.wire != Encoding::none; };
      bool did = false;
      switch (action.step->kind) {
        case Step::Kind::send:
          did = small     ? send_small(cursor, action)
                : coded() ? send_coded(cursor, action)
                          : send(cursor, action);
          break;
        case Step::Kind::combine:
          did = small ? combine_small(cursor, action) : combine(cursor, action);
          break;
        case Step::Kind::receive:
          did = small     ? receive_small(cursor, action)
                : coded() ? receive_coded(cursor, action)
                          : receive(cursor, action);
          break;
        default:
          did = coded() ? local_coded(cursor, action) : local(cursor, action);
      }
      if (!did) return moved;
    }
    if (cursor.lent > 0 && !readers_gone(cursor)) return moved;
    if (transport_.queues() && !transport_.flushed(cursor.lane)) {
      wait_for_room(cursor, {});
      return moved;
    }
    if (narrow_arrays()) narrow(cursor);
    const std::size_t next = cursor.slice + static_cast<std::size_t>(in_flight_);
    if (next >= task_.geometry->slices) {
      cursor.running = false;
      if (--running_ == 0 && task_.bytes >= task_.lend_from) check_what_was_read();
      return true;
    }
    moved = true;
    begin_slice(cursor, next);
  }
}

// A peer whose call was broken off may have changed what it had lent, but only after it had said so.
void Executor::check_what_was_read() {
  std::atomic_thread_fence(std::memory_order_acquire);
  transport_.check();
}

// The slice is over when nobody reads this rank's memory any more.
bool Executor::readers_gone(Cursor& cursor) {
  for (const Action* action = cursor.actions; action != cursor.end; ++action) {
    if (state_of(cursor, static_cast<int>(action - cursor.actions)) == lent && !readers_done(cursor, *action))
      return false;
  }
  return true;
}

bool Executor::readers_done(Cursor& cursor, const Action& send) {
  for (int i = 0; i < send.peer_count; ++i) {
    const std::uint32_t ticket = cursor.tickets[send.step->tickets_begin + i];
    if (!transport_.consumed(cursor.lane, send.peers[i], ticket)) return wait_for(send.peers[i]);
  }
  return true;
}

bool Executor::fence(Cursor& cursor, const Step& step) {
  if (cursor.lent == 0) return true;
  for (int f = step.fence_begin; f < step.fence_end; ++f) {
    const int index = task_.program->fences[f];
    if (state_of(cursor, index) == lent && !readers_done(cursor, cursor.actions[index])) return false;
  }
  return true;
}

// Whether the peers read the message from where it is.
bool Executor::lends(const Action& send) const {
  if (send.bytes < task_.lend_from || send.moves_end - send.moves != 1) return false;
  const Memory from = send.moves->from;
  if (send.step->lendable && reachable(from)) return true;
  return (send.step->lendable || send.step->overwritten) && transport_.queues() &&
         !(task_.scale && from == Memory::input) &&
         transport_.reachable_by({send.peers, static_cast<std::size_t>(send.peer_count)});
}

bool Executor::send(Cursor& cursor, const Action& action) {
  std::uint8_t& state = cursor.state[action.step - task_.program->steps.data()];
  if (state != pending) return true;  // a fused step has sent it
  const Peers peers(action.peers, action.peer_count);
  if (lends(action)) {
    if (!lend(cursor, action)) return wait_for_room(cursor, peers);
    state = lent;
    cursor.clean = false;
    return true;
  }
  std::byte* room = transport_.reserve(cursor.lane, peers, action.bytes);
  if (!room) return wait_for_room(cursor, peers);
  fill(cursor, action, room);
  transport_.post(cursor.lane, peers, room, action.bytes, task_.contract);
  return true;
}

bool Executor::lend(Cursor& cursor, const Action& action) {
  const Move& move = *action.moves;
  const std::byte* data = cursor.base[static_cast<int>(move.from)] + move.source;
  std::byte* grant = nullptr;
  if (action.step->grants && reachable(Memory::output)) {
    grant = cursor.base[static_cast<int>(Memory::output)] + move.target;
  }
  const Peers peers(action.peers, action.peer_count);
  if (!transport_.lend(cursor.lane, peers, data, action.bytes, task_.contract, grant)) return false;
  ++cursor.lent;
  for (int i = 0; i < action.peer_count; ++i) {
    cursor.tickets[action.step->tickets_begin + i] = transport_.sent(cursor.lane, action.peers[i]);
  }
  return true;
}

void Executor::fill(Cursor& cursor, const Action& action, std::byte* to) {
  for (const Move* move = action.moves; move != action.moves_end; ++move) {
    const void* source = cursor.base[static_cast<int>(move->from)] + move->source;
    void* target = to;
    if (task_.scale && move->from == Memory::input) {
      task_.scale(&target, 1, &source, 1, move->count, task_.factor);
    } else if (move->bytes >= stream_) {
      stream(target, source, move->bytes);
    } else {
      copy(&target, 1, source, move->bytes);
    }
    to += move->bytes;
  }
}

// Where the fused send's message can be written while it is being computed: into the peers' own memory if all
// of them granted it, else into the lane's arena. Fills targets_[1...], and returns how many.
int Executor::carry_on(Cursor& cursor, const Action& action, bool granted, bool& pushes) {
  const Step& step = *action.step;
  if (step.fused < 0 || action.bytes <= small_ || state_of(cursor, step.fused) != pending) return 0;
  const Action& send = cursor.actions[step.fused];
  if (granted && step.pushable && action.moves_end - action.moves == 1) {
    int count = 0;
    for (int k = 0; k < action.peer_count; ++k) {
      if (action.peers[k] >= 0) targets_[++count] = messages_[k].grant;
    }
    pushes = true;
    return count;
  }
  if (lends(send)) return 0;
  std::byte* room =
      transport_.reserve(cursor.lane, {send.peers, static_cast<std::size_t>(send.peer_count)}, action.bytes);
  if (!room) return 0;
  targets_[1] = room;
  return 1;
}

void Executor::carried(Cursor& cursor, const Action& action, std::byte* staged, bool pushes) {
  const Action& send = cursor.actions[action.step->fused];
  const Peers peers(send.peers, send.peer_count);
  if (!pushes) {
    transport_.post(cursor.lane, peers, staged, action.bytes, task_.contract);
  } else if (!transport_.lend(cursor.lane, peers, nullptr, action.bytes, task_.contract, nullptr)) {
    return;  // no room for the announcement: the send's own step will lend the result instead
  }
  cursor.state[action.step->fused] = posted;
  cursor.clean = false;
}

bool Executor::combine(Cursor& cursor, const Action& action) {
  bool granted = true, complete = true;
  for (int k = 0; k < action.peer_count; ++k) {
    if (action.peers[k] < 0) continue;
    if (arrived(cursor, action.peers[k], action.bytes, messages_[k])) {
      granted = granted && messages_[k].grant;
      continue;
    }
    complete = false;
    // A peer that needs our core is the one to wait for: nobody else can help it.
    if (!transport_.shares_core(action.peers[k])) continue;
    waiting_for_ = action.peers[k];
    break;
  }
  if (!complete) return false;
  if (!fence(cursor, *action.step)) return false;
  if (task_.wire != Encoding::none) {
    combine_coded(cursor, action);
  } else {
    bool pushes = false;
    const int more = carry_on(cursor, action, granted, pushes);
    std::byte* staged = more > 0 ? static_cast<std::byte*>(targets_[1]) : nullptr;
    combine_moves(cursor, action, more);
    if (more > 0) carried(cursor, action, staged, pushes);
  }
  for (int k = 0; k < action.peer_count; ++k) {
    if (action.peers[k] >= 0) transport_.release(cursor.lane, action.peers[k]);
  }
  return true;
}

// One pass per run over all sources, into the chunk's home and `more` further targets.
void Executor::combine_moves(Cursor& cursor, const Action& action, int more) {
  std::byte* const staged = static_cast<std::byte*>(targets_[1]);
  std::size_t done = 0;  // bytes of the message
  for (const Move* move = action.moves; move != action.moves_end; ++move) {
    const void* own = cursor.base[static_cast<int>(move->from)] + move->source;
    void* home = cursor.base[static_cast<int>(move->to)] + move->target;
    if (task_.scale && move->from == Memory::input) {
      task_.scale(&home, 1, &own, 1, move->count, task_.factor);
      own = home;
    }
    for (int k = 0; k < action.peer_count; ++k) {
      sources_[k] = action.peers[k] < 0 ? own : messages_[k].data + done;
    }
    targets_[0] = home;
    if (more > 0) targets_[1] = staged + done;  // pushes have one run only
    const int skip = more > 0 && !move->keep ? 1 : 0;
    const Combine function = move->last ? task_.last : task_.combine;
    if (more == 1 && move->bytes >= stream_) {
      combine_and_stream(function, action.peer_count, move->count);
    } else {
      function(&targets_[skip], 1 + more - skip, sources_.data(), action.peer_count, move->count,
               task_.divide);
    }
    done += move->bytes;
  }
}

// Into targets_[0], and block by block, while it is in the first-level cache, past the cache into
// targets_[1].
void Executor::combine_and_stream(Combine function, int sources, std::size_t count) {
  constexpr std::size_t block_bytes = 8 << 10;
  const std::size_t element = task_.geometry->element;
  for (std::size_t left = count; left > 0;) {
    const std::size_t block = std::min(left, block_bytes / element);
    function(targets_.data(), 1, sources_.data(), sources, block, task_.divide);
    stream(targets_[1], targets_[0], block * element);
    left -= block;
    for (int k = 0; k < sources; ++k)
      sources_[k] = static_cast<const std::byte*>(sources_[k]) + block * element;
    for (int k = 0; k < 2; ++k) targets_[k] = static_cast<std::byte*>(targets_[k]) + block * element;
  }
}

// Where the message that is awaited may come straight to its place.
void Executor::offer_place(Cursor& cursor, const Action& action) {
  if (action.bytes < large_message || action.moves_end - action.moves != 1) return;
  const Move& move = *action.moves;
  if (!move.keep || !fence(cursor, *action.step)) return;
  if (action.step->fused >= 0 && !lends(cursor.actions[action.step->fused])) return;
  transport_.place(cursor.lane, action.peers[0], cursor.base[static_cast<int>(move.to)] + move.target,
                   action.bytes, task_.contract);
}

bool Executor::receive(Cursor& cursor, const Action& action) {
  const int peer = action.peers[0];
  Message& message = messages_[0];
  if (!arrived(cursor, peer, action.bytes, message)) {
    if (transport_.queues()) offer_place(cursor, action);
    return false;
  }
  if (!fence(cursor, *action.step)) return false;
  if (!message.delivered) {
    bool pushes = false;
    const int more = carry_on(cursor, action, false, pushes);
    std::byte* staged = more > 0 ? static_cast<std::byte*>(targets_[1]) : nullptr;
    std::size_t done = 0;
    for (const Move* move = action.moves; move != action.moves_end; ++move) {
      targets_[0] = cursor.base[static_cast<int>(move->to)] + move->target;
      if (more > 0) targets_[1] = staged + done;
      const int skip = more > 0 && !move->keep ? 1 : 0;
      if (more == 0 && move->to == Memory::output && move->bytes >= afresh_) {
        stream(targets_[0], message.data + done, move->bytes);
      } else {
        copy(&targets_[skip], 1 + more - skip, message.data + done, move->bytes);
      }
      done += move->bytes;
    }
    if (more > 0) carried(cursor, action, staged, false);
  }
  transport_.release(cursor.lane, peer);
  return true;
}

bool Executor::local(Cursor& cursor, const Action& action) {
  if (!fence(cursor, *action.step)) return false;
  for (const Move* move = action.moves; move != action.moves_end; ++move) {
    const void* source = cursor.base[static_cast<int>(move->from)] + move->source;
    void* target = cursor.base[static_cast<int>(move->to)] + move->target;
    if (action.step->kind == Step::Kind::local_combine) {
      const void* both[] = {cursor.base[static_cast<int>(move->own_in)] + move->own, source};
      (move->last ? task_.last : task_.combine)(&target, 1, both, 2, move->count, task_.divide);
    } else if (task_.scale && move->from == Memory::input) {
      task_.scale(&target, 1, &source, 1, move->count, task_.factor);
    } else if (target != source && move->to == Memory::output && move->bytes >= afresh_) {
      stream(target, source, move->bytes);
    } else if (target != source) {
      copy(&target, 1, source, move->bytes);
    }
  }
  return true;
}

}  // namespace ringreduce

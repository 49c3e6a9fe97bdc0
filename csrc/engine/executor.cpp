#include "engine/executor.h"

#include <algorithm>

namespace ringreduce {

Executor::Executor(Transport& transport)
    : transport_(transport),
      cursors_(Transport::lanes),
      messages_(transport.world + 1),
      sources_(transport.world + 1),
      targets_(transport.world + 1) {}

void Executor::start(const Task& task) {
  task_ = task;
  const Program& program = *task_.program;
  const Geometry& g = task_.geometry;
  const int cursors = static_cast<int>(std::min<std::size_t>(task_.lanes, g.slices));
  std::size_t temp = 0;
  if (program.uses_temp) {
    temp = (g.temp_bytes(program.schedule) + 63) / 64 * 64;
    if (temp_.size() < temp * cursors + 64) temp_.resize(temp * cursors + 64);
  }
  std::byte* temp_base = temp_.data() + (64 - reinterpret_cast<std::uintptr_t>(temp_.data()) % 64) % 64;
  running_ = 0;
  for (int i = 0; i < cursors; ++i) {
    Cursor& cursor = cursors_[i];
    cursor.lane = task_.first_lane + i;
    cursor.temp = temp_base + temp * i;
    cursor.running = true;
    if (cursor.state.size() < program.steps.size()) cursor.state.resize(program.steps.size());
    if (cursor.tickets.size() < static_cast<std::size_t>(program.tickets)) cursor.tickets.resize(program.tickets);
    begin_slice(cursor, i);
    ++running_;
  }
  for (std::size_t i = cursors; i < cursors_.size(); ++i) cursors_[i].running = false;
}

void Executor::begin_slice(Cursor& cursor, std::size_t slice) {
  cursor.slice = slice;
  cursor.step = 0;
  cursor.lent = 0;
  std::fill_n(cursor.state.begin(), task_.program->steps.size(), pending);
}

bool Executor::advance() {
  bool moved = false;
  waiting_for_ = -1;
  for (Cursor& cursor : cursors_) {
    if (cursor.running) moved |= advance(cursor);
  }
  return moved;
}

bool Executor::advance(Cursor& cursor) {
  const std::vector<Step>& steps = task_.program->steps;
  bool moved = false;
  while (true) {
    while (cursor.step < static_cast<int>(steps.size())) {
      const Step& step = steps[cursor.step];
      bool did = false;
      switch (step.kind) {
        case Step::Kind::send:
          did = send(cursor, cursor.step);
          break;
        case Step::Kind::combine:
          did = combine(cursor, step);
          break;
        case Step::Kind::receive:
          did = receive(cursor, step);
          break;
        default:
          did = local(cursor, step);
      }
      if (!did) return moved;
      moved = true;
      ++cursor.step;
    }
    if (cursor.lent > 0 && !settled(cursor)) return moved;
    moved = true;
    const std::size_t next = cursor.slice + std::min<std::size_t>(task_.lanes, task_.geometry.slices);
    if (next >= task_.geometry.slices) {
      cursor.running = false;
      --running_;
      return true;
    }
    begin_slice(cursor, next);
  }
}

// The slice is over when nobody reads this rank's memory any more.
bool Executor::settled(Cursor& cursor) {
  const std::vector<Step>& steps = task_.program->steps;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (cursor.state[i] == SendState::lent && !readers_done(cursor, steps[i])) return false;
  }
  return true;
}

bool Executor::readers_done(Cursor& cursor, const Step& send) {
  int ticket = send.tickets_begin;
  for (int peer : peers_of(send)) {
    if (!transport_.consumed(cursor.lane, peer, cursor.tickets[ticket++])) {
      if (waiting_for_ < 0) waiting_for_ = peer;
      return false;
    }
  }
  return true;
}

bool Executor::fence(Cursor& cursor, const Step& step) {
  if (cursor.lent == 0) return true;
  for (int f = step.fence_begin; f < step.fence_end; ++f) {
    const int index = task_.program->fences[f];
    if (cursor.state[index] == SendState::lent && !readers_done(cursor, task_.program->steps[index])) return false;
  }
  return true;
}

Peers Executor::peers_of(const Step& step) const {
  const int* peers = task_.program->peers.data();
  return {peers + step.peers_begin, peers + step.peers_end};
}

std::byte* Executor::address(const Cursor& cursor, Memory memory, const Run& run) const {
  const std::size_t offset = run.offset * task_.geometry.element;
  if (memory == Memory::output) return task_.output + offset;
  if (memory == Memory::input) return const_cast<std::byte*>(task_.input) + offset;
  return cursor.temp + offset;
}

Run Executor::run_of(const Cursor& cursor, Memory memory, const Part& part, int i) const {
  const Geometry& g = task_.geometry;
  return g.run(memory, cursor.slice, part.chunks.first + i, g.run_chunks(part));
}

std::size_t Executor::bytes_of(const Cursor& cursor, const Step& step, bool source) const {
  std::size_t elements = 0;
  for (int p = step.parts_begin; p < step.parts_end; ++p) {
    const Part& part = task_.program->parts[p];
    const Memory memory = source ? part.source : part.target;
    for (int i = 0; i < task_.geometry.runs(part); ++i) elements += run_of(cursor, memory, part, i).count;
  }
  return elements * task_.geometry.element;
}

bool Executor::send(Cursor& cursor, int index) {
  if (cursor.state[index] != pending) return true;
  const Step& step = task_.program->steps[index];
  const std::size_t bytes = bytes_of(cursor, step, true);
  if (bytes == 0 && cursor.slice > 0) return true;  // of uneven chunks, this one has ended
  const Peers peers = peers_of(step);
  const Part* part = step.lendable ? &task_.program->parts[step.parts_begin] : nullptr;
  if (part && reachable(part->source) && bytes >= task_.lend_from && task_.geometry.runs(*part) == 1) {
    const Run run = run_of(cursor, part->source, *part, 0);
    const bool grants = step.grants && reachable(Memory::output);
    std::byte* grant =
        grants ? address(cursor, Memory::output, run_of(cursor, Memory::output, *part, 0)) : nullptr;
    if (!transport_.lend(cursor.lane, peers, address(cursor, part->source, run), bytes, task_.contract, grant)) {
      if (waiting_for_ < 0) waiting_for_ = peers[0];
      return false;
    }
    cursor.state[index] = SendState::lent;
    ++cursor.lent;
    int ticket = step.tickets_begin;
    for (int peer : peers) cursor.tickets[ticket++] = transport_.sent(cursor.lane, peer);
    return true;
  }
  std::byte* room = transport_.reserve(cursor.lane, peers, bytes);
  if (!room) {
    if (waiting_for_ < 0) waiting_for_ = peers[0];
    return false;
  }
  fill(cursor, step, room);
  transport_.post(cursor.lane, peers, room, bytes, task_.contract);
  cursor.state[index] = posted;
  return true;
}

void Executor::fill(Cursor& cursor, const Step& step, std::byte* to) {
  for (int p = step.parts_begin; p < step.parts_end; ++p) {
    const Part& part = task_.program->parts[p];
    for (int i = 0; i < task_.geometry.runs(part); ++i) {
      const Run run = run_of(cursor, part.source, part, i);
      const void* source = address(cursor, part.source, run);
      void* target = to;
      if (task_.scale && part.source == Memory::input) {
        task_.scale(&target, 1, &source, 1, run.count, task_.factor);
      } else {
        copy(&target, 1, source, run.count * task_.geometry.element);
      }
      to += run.count * task_.geometry.element;
    }
  }
}

bool Executor::arrived(Cursor& cursor, int peer, std::size_t bytes, Message& message) {
  if (!transport_.poll(cursor.lane, peer, message)) {
    if (waiting_for_ < 0) waiting_for_ = peer;
    return false;
  }
  if (message.contract != task_.contract || message.bytes != bytes) [[unlikely]] {
    throw ContractBroken{peer, bytes, message.bytes, message.contract == task_.contract};
  }
  return true;
}

// Where the fused send's message can be written while it is being computed: into the peers' own memory if all
// of them granted it, else into the lane's arena. Returns the number of targets added.
int Executor::carry_on(Cursor& cursor, const Step& step, std::size_t bytes, bool granted, void** targets,
                       bool& pushes) {
  pushes = false;
  if (step.fused < 0 || bytes == 0 || cursor.state[step.fused] != pending) return 0;
  const Step& send = task_.program->steps[step.fused];
  const Part& part = task_.program->parts[step.parts_begin];
  if (granted && step.pushable && task_.geometry.runs(part) == 1) {
    int count = 0;
    for (int k = step.peers_begin; k < step.peers_end; ++k) {
      if (task_.program->peers[k] >= 0) targets[count++] = messages_[k - step.peers_begin].grant;
    }
    pushes = true;
    return count;
  }
  if (send.lendable && reachable(Memory::output) && bytes >= task_.lend_from) return 0;
  std::byte* room = transport_.reserve(cursor.lane, peers_of(send), bytes);
  if (!room) return 0;
  targets[0] = room;
  return 1;
}

void Executor::carried(Cursor& cursor, const Step& step, std::size_t bytes, std::byte* staged, bool pushes) {
  const Peers peers = peers_of(task_.program->steps[step.fused]);
  if (!pushes) {
    transport_.post(cursor.lane, peers, staged, bytes, task_.contract);
  } else if (!transport_.announce(cursor.lane, peers, bytes, task_.contract)) {
    return;  // no room for the announcement: the send's own step will lend the result instead
  }
  cursor.state[step.fused] = posted;
}

bool Executor::combine(Cursor& cursor, const Step& step) {
  const std::size_t bytes = bytes_of(cursor, step, false);
  const int sources = step.peers_end - step.peers_begin;
  const int* peers = task_.program->peers.data() + step.peers_begin;
  if (bytes == 0 && cursor.slice > 0) return true;
  bool granted = true;
  for (int k = 0; k < sources; ++k) {
    if (peers[k] < 0) continue;
    if (!arrived(cursor, peers[k], bytes, messages_[k])) return false;
    granted = granted && messages_[k].grant;
  }
  if (!fence(cursor, step)) return false;
  bool pushes = false;
  const int more = carry_on(cursor, step, bytes, granted, &targets_[1], pushes);
  std::byte* staged = more > 0 ? static_cast<std::byte*>(targets_[1]) : nullptr;
  combine_runs(cursor, step, sources, more);
  if (more > 0) carried(cursor, step, bytes, staged, pushes);
  for (int k = 0; k < sources; ++k) {
    if (peers[k] >= 0) transport_.release(cursor.lane, peers[k]);
  }
  return true;
}

// One pass per run over all sources, into the chunk's home and `more` further targets (targets_[1...]).
void Executor::combine_runs(Cursor& cursor, const Step& step, int sources, int more) {
  const int* peers = task_.program->peers.data() + step.peers_begin;
  std::byte* const carried_to = static_cast<std::byte*>(targets_[1]);
  std::size_t done = 0;  // bytes of the message
  for (int p = step.parts_begin; p < step.parts_end; ++p) {
    const Part& part = task_.program->parts[p];
    for (int i = 0; i < task_.geometry.runs(part); ++i) {
      const Run run = run_of(cursor, part.target, part, i);
      const void* own = address(cursor, part.source, run_of(cursor, part.source, part, i));
      void* home = address(cursor, part.target, run);
      if (task_.scale && part.source == Memory::input) {
        task_.scale(&home, 1, &own, 1, run.count, task_.factor);
        own = home;
      }
      for (int k = 0; k < sources; ++k) {
        sources_[k] = peers[k] < 0 ? own : messages_[k].data + done;
      }
      targets_[0] = home;
      if (more > 0) targets_[1] = carried_to + done;  // further targets, if any, have one run only
      const int skip = more > 0 && !part.keep ? 1 : 0;
      const Combine function = part.last ? task_.last : task_.combine;
      function(&targets_[skip], 1 + more - skip, sources_.data(), sources, run.count, task_.divide);
      done += run.count * task_.geometry.element;
    }
  }
}

bool Executor::receive(Cursor& cursor, const Step& step) {
  const std::size_t bytes = bytes_of(cursor, step, false);
  if (bytes == 0 && cursor.slice > 0) return true;
  const int peer = task_.program->peers[step.peers_begin];
  Message& message = messages_[0];
  if (!arrived(cursor, peer, bytes, message)) return false;
  if (!fence(cursor, step)) return false;
  if (!message.delivered) {
    bool pushes = false;
    const int more = carry_on(cursor, step, bytes, false, &targets_[1], pushes);
    std::byte* staged = more > 0 ? static_cast<std::byte*>(targets_[1]) : nullptr;
    std::size_t done = 0;
    for (int p = step.parts_begin; p < step.parts_end; ++p) {
      const Part& part = task_.program->parts[p];
      for (int i = 0; i < task_.geometry.runs(part); ++i) {
        const Run run = run_of(cursor, part.target, part, i);
        targets_[0] = address(cursor, part.target, run);
        if (more > 0) targets_[1] = staged + done;
        const int skip = more > 0 && !part.keep ? 1 : 0;
        copy(&targets_[skip], 1 + more - skip, message.data + done, run.count * task_.geometry.element);
        done += run.count * task_.geometry.element;
      }
    }
    if (more > 0) carried(cursor, step, bytes, staged, false);
  }
  transport_.release(cursor.lane, peer);
  return true;
}

bool Executor::local(Cursor& cursor, const Step& step) {
  if (!fence(cursor, step)) return false;
  const Part& to = task_.program->parts[step.parts_begin];
  const Part& from = task_.program->parts[step.from_begin];
  for (int i = 0; i < task_.geometry.runs(to); ++i) {
    const Run run = run_of(cursor, to.target, to, i);
    void* target = address(cursor, to.target, run);
    const void* source = address(cursor, from.source, run_of(cursor, from.source, from, i));
    const void* own = address(cursor, to.source, run_of(cursor, to.source, to, i));
    if (task_.scale && from.source == Memory::input) {
      if (step.kind == Step::Kind::local_combine) throw Error("a scaled local reduction is not supported");
      task_.scale(&target, 1, &source, 1, run.count, task_.factor);
    } else if (step.kind == Step::Kind::local_combine) {
      const void* both[] = {own, source};
      (to.last ? task_.last : task_.combine)(&target, 1, both, 2, run.count, task_.divide);
    } else if (target != source) {
      copy(&target, 1, source, run.count * task_.geometry.element);
    }
  }
  return true;
}

}  // namespace ringreduce

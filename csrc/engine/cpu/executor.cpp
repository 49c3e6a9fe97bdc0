#include "engine/cpu/executor.h"

#include <algorithm>
#include <atomic>

#include "transport/interface/orders.h"

namespace ringreduce {
namespace {

// For shorter messages a pass over the data costs less than deciding how to save one.
constexpr std::size_t small_message = CopyToReader::past_from - 1;
// If the inputs and outputs of the ranks that share a cache take so many bytes, the output has left it by the
// time the caller uses it.
constexpr std::size_t beyond_cache = 16 << 20;
// The ranks that are taken to share one: on cores of their own, and if they share cores, at most.
constexpr std::size_t usual_sharers = 2, most_sharers = 8;
// Longer buffers leave the caches before they are written again.
constexpr std::size_t longest_taken = 16 << 20, longest_taken_near = 1 << 20;

std::size_t in_lines(std::size_t bytes) {
  return (bytes + 63) / 64;
}

// Whether what arrives goes to memory that has not been read: a copy through the cache would load it only to
// overwrite it.
bool writes_afresh(const Task& task, const Transport& transport) {
  const std::size_t sharers = transport.facts().oversubscribed
                                  ? std::min(static_cast<std::size_t>(transport.world), most_sharers)
                                  : usual_sharers;
  if (task.touched * sharers < beyond_cache) return false;
  const Collective collective = task.plan->program->schedule.collective;
  if (task.plan->geometry.narrow != Encoding::none)
    return false;  // copies go to the slice's memory, which is used again
  const bool in_place = task.input == task.output;
  return !in_place || !(reduces(collective) || contents(collective, true) == Holds::exchanged);
}

}  // namespace

Executor::Executor(Transport& transport)
    : transport_(transport),
      fetches_(!copies_without_fetching()),
      cursors_(Transport::collective_lanes),
      messages_(transport.world + 1),
      sources_(transport.world + 1),
      targets_(transport.world + 1),
      copies_to_(transport.world + 1),
      takers_(transport.world) {
  for (Cursor& cursor : cursors_) cursor.last_lent.resize(transport.world);
}

void Executor::prepare(const Plan& plan) {
  const Program& program = *plan.program;
  Prepared& prepared = plan.prepared;
  prepared.lanes = static_cast<int>(std::min<std::size_t>(plan.lanes, plan.geometry.slices));
  prepared.temp = program.uses_temp ? in_lines(plan.geometry.temp_bytes(program.schedule)) : 0;
  prepared.with_wide = prepared.temp + in_lines(plan.geometry.widened_bytes());
  make_room(temp_, prepared.with_wide * prepared.lanes);
  const bool is_coded = plan.wire != Encoding::none;
  prepared.small = plan.scale || is_coded ? 0 : fetches_ ? small_message : least_without_fetching;
  prepared.through_slots = prepared.small > 0 && tells(plan);
  const bool lane_holds_slice =
      !is_coded && plan.geometry.whole &&
      plan.geometry.slice * plan.geometry.element <= transport_.facts().capacity / 2;
  prepared.traffic =
      program.traffic == Traffic::answered && !lane_holds_slice ? Traffic::any : program.traffic;
  for (int i = 0; i < prepared.lanes; ++i) {
    Cursor& cursor = cursors_[i];
    if (cursor.state.size() < program.steps.size()) cursor.state.resize(program.steps.size(), pending);
    if (cursor.tickets.size() < static_cast<std::size_t>(program.tickets))
      cursor.tickets.resize(program.tickets);
  }
  prepared.known = true;
}

void Executor::start(const Task& task) {
  task_ = task;
  const Plan& plan = *task_.plan;
  if (!plan.prepared.known) [[unlikely]]
    prepare(plan);
  const Prepared& prepared = plan.prepared;
  in_flight_ = running_ = prepared.lanes;
  small_ = prepared.small;
  through_slots_ = prepared.through_slots;
  answered_ = prepared.traffic == Traffic::answered;
  heard_ = 0;
  afresh_ = fetches_ && writes_afresh(task_, transport_);
  // What peers have just copied to their output for us is as fast to write again past their caches.
  const bool written = plan.program->keeps_first && task_.input != task_.output;
  takes_from_ = written || task_.bytes > longest_taken ? Take::never_asked
                : task_.bytes > longest_taken_near     ? Take::in_long_calls
                                                       : Take::in_short_calls;
  if (coded()) prepare_coded();
  for (int i = 0; i < in_flight_; ++i) {
    Cursor& cursor = cursors_[i];
    cursor.lane = i;
    cursor.temp = reinterpret_cast<std::byte*>(temp_.data() + prepared.with_wide * i);
    cursor.wide = cursor.temp + prepared.temp * sizeof(Line);
    cursor.running = true;
    transport_.begin_call(cursor.lane, prepared.traffic);
    begin_slice(cursor, i);
  }
}

void Executor::begin_slice(Cursor& cursor, std::size_t slice) {
  const Plan& plan = *task_.plan;
  const bool last = slice + 1 == plan.geometry.slices;
  const Layout* layout = last ? &plan.last_slice : &plan.full;
  // The layout of a full slice, computed for slice 0, serves all of them.
  const std::size_t shift = last || plan.uneven ? 0 : slice * plan.geometry.slice * plan.geometry.element;
  if (plan.uneven && (!last || (plan.blind && plan.geometry.slices > 1))) {
    cursor.layout.resolve(*plan.program, plan.geometry, slice);
    layout = &cursor.layout;
  }
  cursor.slice = slice;
  cursor.actions = cursor.action = layout->actions().data();
  cursor.end = cursor.actions + layout->actions().size();
  cursor.base[static_cast<int>(Memory::input)] = const_cast<std::byte*>(task_.input) + shift;
  cursor.base[static_cast<int>(Memory::output)] = task_.output + shift;
  cursor.base[static_cast<int>(Memory::temp)] = cursor.temp;
  const bool only_input = !reachable(Memory::output) && reachable(Memory::input);
  cursor.base[static_cast<int>(Memory::kept)] =
      cursor.base[static_cast<int>(only_input ? Memory::input : Memory::output)];
  if (narrow_arrays()) widen(cursor);
  cursor.lent = 0;
  if (!cursor.clean) {
    std::fill(cursor.state.begin(), cursor.state.end(), pending);
    cursor.clean = true;
  }
}

bool Executor::wait_for_room(const Cursor& cursor, Peers peers) {
  if (waiting_for_ >= 0) return false;
  return wait_for(transport_.in_the_way(cursor.lane, peers));
}

inline bool Executor::send_small(Cursor& cursor, const Action& action) {
  const void* const source = action.runs().empty() ? nullptr : cursor.source(*action.moves);  // a barrier's
  const Peers peers = action.receivers();
  if (through_slots_) {
    transport_.fill_broadcast_slot(source, action.bytes, task_.contract);
    return true;
  }
  return transport_.send(cursor.lane, peers, source, action.bytes, task_.contract) ||
         wait_for_room(cursor, peers);
}

inline bool Executor::combine_small(Cursor& cursor, const Action& action) {
  const Move& move = *action.moves;
  Message message;
  const Peers all(action.peers, static_cast<std::size_t>(action.peer_count));
  for (int k = heard_;; ++k) {
    if (through_slots_)
      k = transport_.read_broadcast_slots(all, k, action.bytes, task_.contract, sources_.data());
    if (k == action.peer_count) break;
    const int peer = action.peers[k];
    if (peer >= 0 && !arrived(cursor, peer, action.bytes, message)) {
      if (through_slots_) heard_ = k;  // what was heard stays where it is
      return false;
    }
    sources_[k] = peer < 0 ? cursor.source(move) : message.data;
  }
  void* target = cursor.target(move);
  apply(move, &target, 1, sources_.data(), action.peer_count, move.count);
  if (!through_slots_) transport_.release(cursor.lane, action.peers[action.remote]);
  return true;
}

inline bool Executor::receive_small(Cursor& cursor, const Action& action) {
  const int peer = action.peers[0];
  Message message;
  if (!arrived(cursor, peer, action.bytes, message)) return false;
  for (const Move& move : action.runs()) {
    void* target = cursor.target(move);
    copy(&target, 1, message.data, move.bytes);
  }
  if (!through_slots_) transport_.release(cursor.lane, peer);
  return true;
}

bool Executor::tells(const Plan& plan) const {
  if (!plan.program->to_everyone || plan.uneven || plan.geometry.slices > 1) return false;
  const Action& first = plan.last_slice.actions().front();
  return transport_.facts().broadcast_slots && first.runs().size() <= 1 &&
         first.bytes <= Transport::broadcast_slot_bytes;
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
      const bool small = through_slots_ || (action.simple && action.bytes <= small_);
      bool did = false;
      switch (action.step->kind) {
        case Step::Kind::send:
          did = small ? send_small(cursor, action) : send(cursor, action);
          break;
        case Step::Kind::combine:
          did = small ? combine_small(cursor, action) : combine(cursor, action);
          break;
        case Step::Kind::receive:
          did = small ? receive_small(cursor, action) : receive(cursor, action);
          break;
        default:
          did = local(cursor, action);
      }
      if (!did) return moved;
    }
    const std::size_t next = cursor.slice + static_cast<std::size_t>(in_flight_);
    const bool last = next >= task_.plan->geometry.slices;
    if (cursor.owes && (last || transport_.facts().queues) && !readers_gone(cursor)) return moved;
    if (transport_.facts().queues && !transport_.flushed(cursor.lane)) {
      wait_for_room(cursor, {});
      return moved;
    }
    if (narrow_arrays()) narrow(cursor);
    if (last) {
      cursor.running = false;
      if (--running_ == 0 && task_.bytes >= lend_from) check_what_was_read();
      return true;
    }
    moved = true;
    transport_.begin_slice(cursor.lane);
    begin_slice(cursor, next);
    if (in_flight_ > 1)
      return true;  // the slices of all lanes in turn: a processor then reads memory in order
  }
}

// A peer whose call was aborted may have changed what it had lent, but only after it had said so.
void Executor::check_what_was_read() {
  std::atomic_thread_fence(order::lent_was_read);
  transport_.check();
}

// A call is finished when no peer reads this rank's memory any more. The next slice need not wait for that:
// no slice writes what another has lent, except for temporary memory, which only queueing transports read in
// place.
bool Executor::readers_gone(Cursor& cursor) {
  for (int peer = 0; peer < transport_.world; ++peer) {
    LastLent& lent = cursor.last_lent[peer];
    if (!lent.any) continue;
    if (!transport_.consumed(cursor.lane, peer, lent.ticket)) return wait_for(peer);
    lent.any = false;
  }
  cursor.owes = false;
  return true;
}

bool Executor::readers_done(const Cursor& cursor, const Action& send) {
  for (int i = 0; i < send.peer_count; ++i) {
    const std::uint32_t ticket = cursor.tickets[send.step->tickets_begin + i];
    if (!transport_.consumed(cursor.lane, send.peers[i], ticket)) return wait_for(send.peers[i]);
  }
  return true;
}

bool Executor::fence(const Cursor& cursor, const Step& step) {
  if (cursor.lent == 0) return true;
  for (int f = step.fence_begin; f < step.fence_end; ++f) {
    const int index = task_.plan->program->fences[f];
    const Action& send = cursor.actions[index];
    if (cursor.state[index] == lent && !stays(*send.moves) && !readers_done(cursor, send)) return false;
  }
  return true;
}

bool Executor::lends(const Action& send) const {
  if (coded() || send.bytes < lend_from || send.runs().size() != 1) return false;
  if (task_.plan->copies && !transport_.facts().queues) return false;
  const Memory from = send.moves->from;
  const bool kept = send.step->overwritten && !send.step->shared && stays(*send.moves);
  if ((send.step->lendable || kept) && reachable(from)) return true;
  if (send.step->shared && reachable(from) && reachable(Memory::output)) return true;
  return (send.step->lendable || send.step->overwritten) && transport_.facts().queues &&
         !scales(*send.moves) && transport_.reachable_by(send.receivers());
}

}  // namespace ringreduce

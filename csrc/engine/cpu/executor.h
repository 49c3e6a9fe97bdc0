// Runs a program. A slice is a cursor through the program's steps. Every lane has one slice in flight, and
// every cursor that can move moves. Nothing here blocks or locks, and nothing allocates after the first run.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "engine/endings/contract.h"
#include "engine/planning/plan.h"
#include "reduce/copy_to_reader.h"
#include "reduce/line_taker.h"
#include "transport/interface/transport.h"

namespace ringreduce {

// One collective call, prepared: what to run, on which memory.
struct Task {
  const Plan* plan = nullptr;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  double factor = 1;                // of the plan's scale
  const UserOp* user_op = nullptr;  // instead of the plan's combinations
  bool input_reachable = false;     // peers can read this rank's input in place
  bool output_reachable = false;
  bool apart = false;          // input and output do not overlap
  std::size_t bytes = 0;       // of the buffer
  std::size_t touched = 0;     // bytes of the input and the output
  std::uint64_t contract = 0;  // must be equal on all ranks
};

// A message arrived that belongs to another collective than the current one.
struct ContractBroken {
  int peer;
  std::size_t expected_bytes, bytes;
  bool same_call;  // the calls agree, but not on this message's length
};

class Executor {
 public:
  // Messages of this many bytes or more are sent by reference where possible.
  static constexpr std::size_t lend_from = 16 << 10;

  explicit Executor(Transport& transport);

  void start(const Task& task);
  // Advances every cursor as far as it can go; true if any moved. Throws ContractBroken.
  bool advance();
  bool done() const { return running_ == 0; }
  // Whether peers may be reading this rank's memory in place.
  bool has_lent() const {
    return std::any_of(cursors_.begin(), cursors_.end(),
                       [](const Cursor& cursor) { return cursor.running && cursor.owes; });
  }
  // The peer that holds up the oldest slice, or -1.
  int waiting_for() const { return waiting_for_; }
  // Bytes of temporary memory that the executor holds. Callable from any thread.
  std::size_t temp_bytes() const { return temp_bytes_.load(std::memory_order_relaxed); }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  enum SendState : std::uint8_t { pending, posted, lent };
  struct LastLent {
    bool any = false;  // that the peer may be reading
    std::uint32_t ticket = 0;
  };
  struct Cursor {
    bool running = false;
    int lane = 0;
    std::size_t slice = 0;
    const Action* actions = nullptr;  // of this slice
    const Action* action = nullptr;   // the next to do
    const Action* end = nullptr;
    std::byte* base[4] = {};  // of this slice, by Memory
    std::byte* temp = nullptr;
    std::byte* wide = nullptr;           // of narrow arrays: this slice's values as float32
    int lent = 0;                        // sends by reference in this slice
    bool owes = false;                   // peers may be reading what this call has lent
    bool clean = false;                  // all of `state` is pending
    std::vector<SendState> state;        // by step: of sends
    std::vector<std::uint32_t> tickets;  // by ticket: the number of the message lent in this slice
    std::vector<LastLent> last_lent;     // by peer
    Layout layout;                       // of an uneven slice

    std::byte* at(Memory memory, std::size_t offset) const { return base[static_cast<int>(memory)] + offset; }
    std::byte* source(const Move& move) const { return at(move.from, move.source); }
    std::byte* target(const Move& move) const { return at(move.to, move.target); }
  };
  // Where a step writes the message of the send that it is fused with.
  struct Onward {
    int targets = 0;               // this many, in targets_ after the home
    std::byte* room = nullptr;     // the message in the lane; null: the targets are what the peers granted
    CopyToReader* copy = nullptr;  // fills the room from the home, instead of one pass over both
  };

  template <class T>
  void make_room(std::vector<T>& memory, std::size_t size) {
    if (memory.size() >= size) return;
    temp_bytes_.fetch_add((size - memory.size()) * sizeof(T), std::memory_order_relaxed);
    memory.resize(size);
  }
  void prepare(const Plan& plan);
  bool advance(Cursor& cursor);
  void begin_slice(Cursor& cursor, std::size_t slice);
  bool readers_gone(Cursor& cursor);
  void check_what_was_read();

  // The path of small messages: one run, nothing fused, lent or scaled. All that goes through broadcast slots
  // takes it.
  bool send_small(Cursor& cursor, const Action& action);
  bool combine_small(Cursor& cursor, const Action& action);
  bool receive_small(Cursor& cursor, const Action& action);

  // Whether every rank sends all others one message, which is so short that it goes through broadcast slots.
  bool tells(const Plan& plan) const;

  // Whether the peers read the message in place.
  bool lends(const Action& send) const;
  bool fence(const Cursor& cursor, const Step& step);
  bool readers_done(const Cursor& cursor, const Action& send);
  bool arrived(const Cursor& cursor, int peer, std::size_t bytes, Message& message);
  bool wait_for(int peer);
  bool wait_for_room(const Cursor& cursor, Peers peers);

  // executor_steps.cpp: the path of all others.
  bool send(Cursor& cursor, const Action& action);
  bool combine(Cursor& cursor, const Action& action);
  bool receive(Cursor& cursor, const Action& action);
  bool local(Cursor& cursor, const Action& action);
  bool lend(Cursor& cursor, const Action& action);
  void offer_place(const Cursor& cursor, const Action& action);
  Onward carry_on(const Cursor& cursor, const Action& action, bool granted);
  void carried(Cursor& cursor, const Action& action, const Onward& onward);
  void fill(const Cursor& cursor, const Action& action, std::byte* to);
  // Of messages to these peers. Null if a peer answers them in their place: then each side claims the lines
  // in turn, and no store waits long.
  CopyToReader* copy_to(Peers peers) {
    if (answered_ && peers.size() == 1) return nullptr;
    return &copies_to_[static_cast<std::size_t>(peers.size() == 1 ? peers.front() : transport_.world)];
  }
  void take(const Move& move, void* target, const void* source, bool afresh) const;
  void combine_moves(const Cursor& cursor, const Action& action, const Onward& onward);
  void combine_move(const Cursor& cursor, const Action& action, const Move& move, std::size_t done,
                    const Onward& onward);
  void apply(const Move& move, void* const* targets, int target_count, const void* const* sources,
             int source_count, std::size_t count) const;
  void combine_half(const Cursor& cursor, const Action& action);
  void combine_and_copy(int sources, const Move& move, CopyToReader& copy_onward);
  void copy_both(const Move& move, const std::byte* from, CopyToReader& copy_onward);
  void receive_moves(const Cursor& cursor, const Action& action, const Onward& onward);
  void receive_and_take(const Move& move, const std::byte* from, LineTaker& taker);
  bool takes(const Action& action);
  void combine_and_take(const Action& action, const Move& move, void** targets, int target_count);

  // executor_coded.cpp: how memory is read and written if messages are encoded.
  void prepare_coded();
  void fill_coded(const Cursor& cursor, const Action& action, std::byte* to);
  void combine_coded(const Cursor& cursor, const Action& action, std::byte* room);
  void combine_move_coded(const Cursor& cursor, const Action& action, const Move& move, std::size_t done,
                          std::byte* room);
  void receive_coded(const Cursor& cursor, const Action& action, std::byte* room);
  void quantize(const Cursor& cursor, const Action& action);
  // In addition, for arrays of 16-bit floats that are quantised in messages.
  void widen(Cursor& cursor);
  void narrow(const Cursor& cursor);

  bool narrow_arrays() const { return task_.plan->geometry.narrow != Encoding::none; }
  bool coded() const { return task_.plan->wire != Encoding::none; }
  bool scales(const Move& move) const { return task_.plan->scale && move.from == Memory::input; }
  bool reachable(Memory memory) const {
    if (memory == Memory::temp) return false;
    const bool input = task_.input_reachable && !task_.plan->scale;
    return memory == Memory::input ? input : task_.output_reachable || (memory == Memory::kept && input);
  }

  // Whether no step of this call writes what this one sends, whatever its round writes.
  bool stays(const Move& move) const { return task_.apart && move.from == Memory::input; }

  Transport& transport_;
  const bool fetches_;  // this core fetches the lines that it overwrites
  Task task_;
  std::vector<Cursor> cursors_;
  std::vector<Line> temp_;
  std::vector<Message> messages_;  // of the current step, by source
  std::vector<const void*> sources_;
  std::vector<void*> targets_;           // [0]: this rank's own; then the message of a fused send
  std::vector<CopyToReader> copies_to_;  // by peer; then to several at a time
  CopyToReader copy_kept_;               // to the output, where peers then read it
  std::vector<LineTaker> takers_;        // by peer
  Codec codec_;                          // of the wire format
  std::vector<std::byte> decoded_;       // pieces of messages, by source; then an encoded one
  std::size_t small_ = 0;                // bytes up to which messages are small
  bool afresh_ = false;                  // copies to the output go past the cache
  Take takes_from_ = Take::never_asked;  // the least wish of an owner whose lines are taken
  bool answered_ = false;                // messages to one peer are
  bool through_slots_ = false;
  int heard_ = 0;  // sources of the combination that have been read from broadcast slots
  int in_flight_ = 0;
  int running_ = 0;
  int waiting_for_ = -1;
  std::atomic<std::size_t> temp_bytes_{0};
};

inline void Executor::apply(const Move& move, void* const* targets, int target_count,
                            const void* const* sources, int source_count, std::size_t count) const {
  const Plan& plan = *task_.plan;
  if (task_.user_op) [[unlikely]]
    return combine_by(*task_.user_op, plan.dtype, targets, target_count, sources, source_count, count);
  (move.last ? plan.last : plan.combine)(targets, target_count, sources, source_count, count, plan.divide);
}

inline bool Executor::wait_for(int peer) {
  if (waiting_for_ < 0) waiting_for_ = peer;
  return false;
}

inline bool Executor::arrived(const Cursor& cursor, int peer, std::size_t bytes, Message& message) {
  message.take = Take::none;  // only transports in shared memory know it
  const bool here = through_slots_ ? transport_.read_broadcast_slot(peer, message)
                                   : transport_.poll(cursor.lane, peer, message);
  if (!here) {
    transport_.expect_to_send(cursor.lane, bytes);
    return wait_for(peer);
  }
  if (!contract::kept(message.contract, task_.contract) || message.bytes != bytes) [[unlikely]] {
    throw ContractBroken{peer, bytes, message.bytes, message.contract == task_.contract};
  }
  return true;
}

}  // namespace ringreduce

// Runs a program. A slice is a cursor through the program's steps; every lane has one slice in flight, and
// whichever cursor can move moves. Nothing here blocks, allocates or locks.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/geometry.h"
#include "engine/program.h"
#include "reduce/reduce.h"
#include "transport/transport.h"

namespace ringreduce {

// One collective call, made ready: what to run, on which memory.
struct Task {
  const Program* program = nullptr;
  Geometry geometry;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  Combine combine = nullptr;   // between ranks
  Combine last = nullptr;      // the combination that completes a result (divides for an average)
  double divide = 1;           // its scale
  Combine scale = nullptr;     // applied to this rank's own values when they are first read, or null
  double factor = 1;
  bool input_reachable = false;   // peers can read this rank's input in place
  bool output_reachable = false;
  std::size_t lend_from = 0;   // bytes from which a message is sent by reference where that is possible
  std::uint64_t contract = 0;  // must be equal on all ranks
  int first_lane = 0;
  int lanes = 1;
};

// A message arrived that belongs to another collective than the one we are in.
struct ContractBroken {
  int peer;
  std::size_t expected_bytes, bytes;
  bool same_call;  // the calls agree, but not on this message's length
};

class Executor {
 public:
  explicit Executor(Transport& transport);

  void start(const Task& task);
  // Moves every cursor as far as it goes; true if any moved. Throws ContractBroken.
  bool advance();
  bool done() const { return running_ == 0; }
  // The peer that holds up the oldest slice, or -1.
  int waiting_for() const { return waiting_for_; }
  // Bytes of temporary memory held.
  std::size_t temp_bytes() const { return temp_.size(); }

 private:
  struct Cursor {
    bool running = false;
    int lane = 0;
    std::size_t slice = 0;
    int step = 0;
    int lent = 0;                        // sends by reference in this slice
    std::byte* temp = nullptr;
    std::vector<std::uint8_t> state;     // by step: of sends, SendState
    std::vector<std::uint32_t> tickets;  // by ticket: the number of the lent message
  };
  enum SendState : std::uint8_t { pending, posted, lent };

  bool advance(Cursor& cursor);
  void begin_slice(Cursor& cursor, std::size_t slice);
  bool settled(Cursor& cursor);

  bool send(Cursor& cursor, int index);
  bool combine(Cursor& cursor, const Step& step);
  bool receive(Cursor& cursor, const Step& step);
  bool local(Cursor& cursor, const Step& step);

  bool fence(Cursor& cursor, const Step& step);
  bool readers_done(Cursor& cursor, const Step& send);
  bool arrived(Cursor& cursor, int peer, std::size_t bytes, Message& message);
  int carry_on(Cursor& cursor, const Step& step, std::size_t bytes, bool granted, void** targets, bool& pushes);
  void carried(Cursor& cursor, const Step& step, std::size_t bytes, std::byte* staged, bool pushes);
  void lend(Cursor& cursor, int index, const std::byte* data, std::size_t bytes, std::byte* grant);
  void fill(Cursor& cursor, const Step& step, std::byte* to);
  void combine_runs(Cursor& cursor, const Step& step, int sources, int targets);

  std::byte* address(const Cursor& cursor, Memory memory, const Run& run) const;
  Run run_of(const Cursor& cursor, Memory memory, const Part& part, int i) const;
  std::size_t bytes_of(const Cursor& cursor, const Step& step, bool source) const;
  Peers peers_of(const Step& step) const;
  bool reachable(Memory memory) const {
    if (memory == Memory::temp) return false;
    return memory == Memory::input ? task_.input_reachable && !task_.scale : task_.output_reachable;
  }

  Transport& transport_;
  Task task_;
  std::vector<Cursor> cursors_;
  std::vector<std::byte> temp_;
  std::vector<Message> messages_;      // of the step at hand, by source
  std::vector<const void*> sources_;
  std::vector<void*> targets_;
  int running_ = 0;
  int waiting_for_ = -1;
};

}  // namespace ringreduce

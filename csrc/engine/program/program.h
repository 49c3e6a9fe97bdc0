// A schedule prepared to run on one rank: which memory each chunk is in at every moment, what may be sent by
// reference, what can be combined and sent on in one pass. It is made once per schedule and serves every
// size, type and operator.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/program/step_kind.h"
#include "schedule/check.h"
#include "schedule/schedule.h"
#include "transport/interface/messages.h"

namespace ringreduce {

// A chunk starts in the user's input; the first write to it goes to its home: the user's output if this rank
// ends with that chunk, temporary memory otherwise. (In place, input and output are the same memory.)
// `kept`: the output, or the input if peers can read only that; both have the value.
enum class Memory : std::uint8_t { input, output, temp, kept };

// A run of chunks that are handled alike.
struct Part {
  Span chunks;
  Memory source = Memory::input;   // where this rank's own value is
  Memory target = Memory::output;  // where it is written
  bool last = false;               // this combination completes the result: an average divides here
  bool keep = true;                // false: only the send that this step is fused with reads the target
  // Coded: the target gets the value that receivers will decode, of what is written (of a send: of what is
  // sent).
  bool quantize = false;
};

struct Step {
  using Kind = StepKind;
  Kind kind;
  int round = 0;          // of the schedule; what remains at the end is in one more round
  bool lendable = false;  // send: nothing writes these chunks in the round, so peers may read them in place
  // send: this round writes these chunks. In the same memory, it cannot wait until peers have read them, but
  // it can wait for a wire, which takes the bytes whatever the peers do.
  bool overwritten = false;
  bool grants = false;    // send: the peer's answer replaces these chunks; it may write it here
  bool pushable = false;  // combine: its fused send goes to exactly the peers whose values it combines
  // send, combine: both ranks of an all-reduce send everything and combine everything. If each can reach the
  // other's memory, each combines one half for both.
  bool shared = false;
  int fused = -1;                      // combine, receive: the send step that passes the result on, or -1
  int parts_begin = 0, parts_end = 0;  // the message; local: targets (sources in `from`)
  int peers_begin = 0, peers_end = 0;  // send: receivers; combine: sources in rank order, own value as -1
  int from_begin = 0;                  // local: parts to read, as many as parts
  int tickets_begin = 0;               // send: one ticket per receiver
  int fence_begin = 0, fence_end = 0;  // sends whose readers must finish before this step writes

  bool is_local() const { return kind == Kind::local || kind == Kind::local_combine; }
  bool combines() const { return kind == Kind::combine || kind == Kind::local_combine; }
};

struct Program {
  Schedule schedule;
  std::vector<Step> steps;
  std::vector<Part> parts;
  std::vector<int> peers;
  std::vector<int> fences;
  int tickets = 0;
  bool to_everyone = false;  // it has one round, in which every rank sends one message, to all others
  // `answered`: peers combine what they are sent and send it back, each chunk once.
  Traffic traffic = Traffic::any;
  int heaviest_round = 0;    // the most chunks that any rank sends in one round; limits the length of slices
  bool keeps_first = false;  // what a rank keeps of its input is copied to the output before it is sent
  bool uses_temp = false;
  bool combines_locally = false;
};

// The most chunks that this rank sends in one round.
int heaviest_round(const Schedule& schedule);

// Whether this rank sends one message, to all others, in the only round.
bool sends_to_everyone(const Schedule& schedule);

// `heaviest_round`: over all ranks, so that all cut slices of the same length. `answers_directly`: if a
// peer's message replaces chunks that it was sent, it is the first message that the peer makes from them, so
// the peer may write it in place. Some correct schedules do not keep to this. `keeps_first`: as in Program.
Program lower(Schedule schedule, int heaviest_round, bool answers_directly = false, bool keeps_first = false);

// For calls whose messages are encoded. `passed_on` is as in Quantizing.
Program lower_coded(Schedule schedule, int heaviest_round, const PassedOn* passed_on);

}  // namespace ringreduce

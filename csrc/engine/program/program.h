// A schedule made ready to run on one rank: which memory each chunk is in at every moment, what may be sent
// by reference, what can be combined and sent on in one pass. Made once per schedule, good for every size,
// type and operator.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/program/step_kind.h"
#include "schedule/check.h"
#include "schedule/schedule.h"

namespace ringreduce {

// A chunk starts in the user's input; the first write to it goes to its home: the user's output if this rank
// ends with that chunk, temporary memory otherwise. (In place, input and output are the same memory.)
enum class Memory : std::uint8_t { input, output, temp };

// A run of chunks that are treated alike.
struct Part {
  Span chunks;
  Memory source = Memory::input;   // where this rank's own value is
  Memory target = Memory::output;  // where it is written
  bool last = false;               // this combination completes the result: an average divides here
  bool keep = true;                // false: nobody reads the target but the send this step is fused with
  // Coded: the target gets what receivers decode of the value that is written (of a send: that is sent).
  bool quantize = false;
};

struct Step {
  using Kind = StepKind;
  Kind kind;
  int round = 0;          // of the schedule; what is left for the end is in one more
  bool lendable = false;  // send: nothing writes these chunks in the round, so peers may read them in place
  // send: this very round writes these chunks. It cannot wait for peers to come and read, but it can for a
  // wire that takes bytes along whatever they do.
  bool overwritten = false;
  bool grants = false;    // send: the peer's answer replaces these very chunks: it may write them itself
  bool pushable = false;  // combine: its fused send goes to exactly the peers whose values it combines
  int fused = -1;         // combine, receive: the send step that carries the result on, or -1
  int parts_begin = 0, parts_end = 0;  // the message, or what is copied (local: targets; sources in `from`)
  int peers_begin = 0, peers_end = 0;  // send: receivers; combine: sources in rank order, own value as -1
  int from_begin = 0;                  // local: parts to read, as many as parts
  int tickets_begin = 0;               // send: one ticket per receiver
  int fence_begin = 0, fence_end = 0;  // sends whose readers must be done before this step writes

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
  int heaviest_round = 0;  // the most chunks that any rank sends in one round: decides how long slices may be
  bool uses_temp = false;
  bool combines_locally = false;
};

// Whether slices are cut from the whole buffer, each of them then divided into chunks (collectives whose
// chunks mean nothing to the user), or from every chunk.
bool slices_whole_buffer(Collective collective);

// The most chunks that this rank sends in one round.
int heaviest_round(const Schedule& schedule);

// `heaviest_round`: of all ranks together, so that all cut slices of one length.
// `answers_directly`: the first message that a peer sends after one whose chunks it is to replace, made from
// that one, is the replacement; then it may write it where the chunks are. Not every right schedule keeps to
// that.
Program lower(Schedule schedule, int heaviest_round, bool answers_directly = false);

// For calls whose messages are encoded. `passed_on` is as in Quantizing.
Program lower_coded(Schedule schedule, int heaviest_round, const PassedOn* passed_on);

}  // namespace ringreduce

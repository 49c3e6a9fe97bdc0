// A program with every address and length computed, in flat form, for a kernel to walk. One piece of memory
// without pointers, which can be copied to a device as it is.
//
// If messages of 16-bit floats are quantised, a slice begins and ends with a local step that converts between
// the arrays and float32 values in temporary memory, which all other steps work on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/program/step_kind.h"

namespace ringreduce::device {

inline constexpr int most_ranks = 32;  // the most sources of a pass
inline constexpr int most_slots = 64;  // messages that a block may have in flight

// Messages, and blocks' parts of temporary memory, begin at multiples of this many bytes.
inline constexpr std::uint64_t line = 256;

// Like Move in engine/program/layout.h; memories are 0 (input), 1 (output) and 2 (temporary).
struct FlatMove {
  std::uint64_t source, target, own;  // bytes
  std::uint64_t bytes;
  std::uint64_t message_bytes;  // the same values in a message
  std::uint8_t from, to, own_in;
  bool last, keep, quantize;
};

struct FlatStep {
  using Kind = StepKind;
  Kind kind;
  bool nothing;          // no message in this slice, or one that an earlier step sends
  std::int32_t carried;  // combine, receive: the step in the layout that sends the result; or -1
  std::int32_t moves_begin, moves_end;
  std::int32_t peers_begin, peers_end;  // this rank's own value as -1
  std::uint64_t bytes;                  // send: of the message
};

// Valid for the slices from this one to the next layout's first, each shifted by a slice's bytes.
struct FlatLayout {
  std::uint64_t first;
  std::int32_t steps_begin, steps_end;
};

// Followed by the data that its offsets refer to, in bytes from its beginning.
struct FlatProgram {
  std::int32_t rank, world;
  std::uint64_t slices;
  std::uint64_t shift;       // bytes of a slice
  std::uint64_t temp_bytes;  // of one slice
  std::uint64_t layouts, steps, moves, peers;
  std::int32_t layout_count;
};

}  // namespace ringreduce::device

// A program with every address and length computed, in flat form, for a kernel to walk. One piece of memory
// without pointers, which can be copied to a device as it is.
//
// Steps of a round that do not depend on each other are a batch. A block waits, moves, fences and posts once
// for all of them.
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
  std::uint64_t in_message;  // where the same values are in the step's message
  std::int32_t step;
  std::uint8_t from, to, own_in;
  bool last, keep, quantize;
};

struct FlatStep {
  using Kind = StepKind;
  Kind kind;
  std::int32_t message;                     // of its batch: the one that it writes; or -1
  std::int32_t sources_begin, sources_end;  // peers whose messages it reads; this rank's own value as -1
};

// Written by a step of the batch, and posted to these peers.
struct FlatMessage {
  std::uint64_t bytes;
  std::int32_t receivers_begin, receivers_end;
};

// In each round, a rank has at most one message to each peer, and one from it, and so has a batch. Its
// messages may belong to two rounds if some are sent on, but then none is sent otherwise.
struct FlatBatch {
  std::int32_t messages_begin, messages_end;
  std::int32_t moves_begin, moves_end;
  std::int32_t sources_begin, sources_end;  // of all its steps
  std::uint64_t longest;                    // bytes of a move
  bool combines;                            // what arrives
};

// Valid for the slices from this one to the next layout's first, each shifted by a slice's bytes. A layout is
// a piece of memory of its own, which begins with its batches.
struct FlatLayout {
  std::uint64_t first;
  std::uint64_t at, bytes;  // in the program: multiples of 16
  // Bytes from the layout's beginning.
  std::uint32_t messages, steps, moves, sources, receivers;
  std::int32_t batches;
};

// Followed by layouts, whose data comes behind them.
struct FlatProgram {
  std::int32_t rank, world;
  std::uint64_t slices;
  std::uint64_t shift;       // bytes of a slice
  std::uint64_t temp_bytes;  // of one slice
  std::int32_t layout_count;
};

}  // namespace ringreduce::device

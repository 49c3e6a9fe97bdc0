// Structures that the ranks' kernels share with the host that launches them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/device/options.h"
#include "gpu/kernels/cuda/flat_program.h"
#include "gpu/reduce/spans.h"

namespace ringreduce::device {

// Data of flagged.h travels as words of half data, half flag: two for each pack of 16 bytes. A block has so
// many packs at a time, a tile of each rank, which fit into its shared memory. All first words lie before all
// second ones, so that a warp writes and reads whole sectors.
inline constexpr std::uint64_t flagged_word_bytes = 16;
inline constexpr std::uint32_t least_round_packs = 256, round_packs = 2048;
inline constexpr std::uint64_t flagged_half_bytes = flagged_word_bytes * round_packs;
inline constexpr std::uint64_t flagged_round_bytes = 2 * flagged_half_bytes;

inline constexpr int most_blocks = GpuOptions::most_blocks;  // of a rank
inline constexpr int most_arenas = 32;

// Messages between two ranks: a block of each sends or receives every so many slices.
inline constexpr int most_lanes = 4;                      // such blocks, for each peer and direction
inline constexpr std::uint64_t message_slice = 32 << 10;  // bytes
inline constexpr int most_messages = 64;                  // of a launch

// The layout of a rank's boxes, the same for all ranks. Each block has words, which peers write or which it
// keeps between calls. The first blocks also have postings, flagged words and an arena for messages. Direct
// kernels need words only, and use more blocks than others. Behind all that, each peer has lanes for messages
// that no collective makes.
struct Boxes {
  std::int32_t blocks;
  std::int32_t world;
  std::uint64_t arena_bytes;  // of a block, in lines
  std::int32_t lanes = 0;     // for each peer

  constexpr std::int32_t arenas() const { return blocks < most_arenas ? blocks : most_arenas; }

  static constexpr std::uint64_t in_lines(std::uint64_t bytes) { return (bytes + line - 1) / line * line; }

  // Where messages are, by sender and number.
  constexpr std::uint64_t posted_bytes() const { return in_lines(8ull * world * most_slots); }
  // Six words for each peer, and four for the block itself.
  constexpr std::uint64_t words_bytes() const { return in_lines(8ull * (6 * world + 4)); }
  // Two places for rounds, and from each peer the contracts of four.
  constexpr std::uint64_t flagged_bytes() const {
    return 2 * flagged_round_bytes + in_lines(4 * flagged_word_bytes * static_cast<std::uint64_t>(world));
  }
  // For a block with an arena, without its words.
  constexpr std::uint64_t block_bytes() const { return posted_bytes() + flagged_bytes() + arena_bytes; }
  constexpr std::uint64_t all_words_bytes() const {
    return words_bytes() * static_cast<std::uint64_t>(blocks);
  }
  constexpr std::uint64_t collectives_bytes() const {
    return all_words_bytes() + block_bytes() * static_cast<std::uint64_t>(arenas());
  }
  // A lane has words, and two slices in flight.
  static constexpr std::uint64_t lane_bytes() { return line + 2 * message_slice; }
  constexpr std::uint64_t bytes() const {
    return collectives_bytes() + lane_bytes() * static_cast<std::uint64_t>(lanes * world);
  }
};

// Reports between a rank's kernels and its host, in host memory. Initially zero.
struct Report {
  // By the host, for each block: not 0: give up. Blocks that load from one line of the host's memory wait for
  // each other, a microsecond each.
  struct alignas(line) Line {
    std::uint64_t flag;
  } abort[most_blocks];
  std::uint64_t differs;   // by the kernel: a peer, plus 1, that made another call
  std::uint64_t overlaps;  // by the kernel: not 0: another call of this rank was running at the same time
  std::uint64_t begun;     // by the first block: calls
  std::uint64_t done[most_blocks];  // by each block
  std::uint64_t direct;             // by the first block: its last call in which all ranks reached all arrays
  // Messages that each lane has begun and ended, received and sent, by peer.
  std::uint64_t messages_begun[2][most_ranks][most_lanes], messages_ended[2][most_ranks][most_lanes];
  // By the kernel: a peer, plus 1, whose message is not the one that this rank receives, and both labels.
  std::uint64_t wrong_peer, wrong_label, expected_label;
};

// By the host.
inline void give_up(Report& report) {
  for (Report::Line& each : report.abort) __atomic_store_n(&each.flag, 1, __ATOMIC_RELEASE);
}

// A message to or from one rank. Both ends' labels must be equal.
struct Message {
  std::uint64_t label;
  char* data;  // a send only reads it
  std::uint64_t bytes;
  std::int32_t peer;
  std::int32_t sends;
};

// Messages of one rank that make progress independently of each other: a kernel's parameter. Those of one
// peer and direction are a pair's, and follow each other.
struct Messages {
  std::int32_t rank;
  std::int32_t pairs;
  Boxes boxes;
  char* memories[most_ranks];              // each rank's boxes, where this rank reaches them
  Report* report;                          // this rank's
  std::uint8_t begins[most_messages + 1];  // of each pair's messages
  Message messages[most_messages];
};
static_assert(sizeof(Messages) <= 4096);  // what a kernel's parameter may have

struct RankRange {
  std::int32_t begin, end;

  constexpr bool contains(int rank) const { return begin <= rank && rank < end; }
};

// Direct: the part that a rank combines or copies, bytes from `source` of some ranks' inputs, to `target` of
// some ranks' outputs. Flagged: what the ranks `from` send to each of the ranks `to`.
struct Share {
  std::uint64_t source, target, bytes;
  RankRange from, to;
  bool from_others, to_others;  // direct: not from each rank's own input, or not to its own output
  bool copies;                  // and combines nothing
  bool exchanges;         // direct: one part after the other, from each rank to another place of the output
  bool spreads = false;   // flagged: each rank combines tiles of its own, and sends the results to all
  std::int8_t shift = 0;  // flagged: see shift_of_tiles; the library sets it
  std::uint64_t source_step = 0, target_step = 0;  // flagged: from one peer's bytes to the next one's
};

// The tiles of a flagged call have 1 << shift packs: a round has one for each of a block's threads at least,
// and then as many as give each block one round, if they fit.
constexpr std::uint64_t round_bytes(const Boxes& boxes, const Share& share, int shift) {
  return (static_cast<std::uint64_t>(share.spreads ? boxes.world : 1) * pack_bytes) << shift;
}
constexpr int shift_of_tiles(const Boxes& boxes, const Share& share) {
  const auto world = static_cast<std::uint32_t>(boxes.world);
  int shift = 0;
  while (world << shift < least_round_packs) ++shift;
  std::uint64_t all = round_bytes(boxes, share, shift) * static_cast<std::uint64_t>(boxes.arenas());
  for (; all < share.bytes && world << (shift + 1) <= round_packs; all *= 2) ++shift;
  return shift;
}

// The kernel's algorithm: see interpreter.h, flagged.h, direct.h.
enum class Duty : std::int32_t { interpret, flagged, direct };

// One rank's part of one call: a kernel's parameter.
struct Errand {
  std::int32_t rank;
  std::int32_t dtype, op;     // numbers of dtype.h; float32 if messages are encoded
  std::int32_t wire, arrays;  // numbers of encoding.h: the forms of messages and of arrays; 0: plain
  Duty duty;
  std::uint64_t contract;  // what all ranks' calls must share
  const char* input;       // of this rank's block, as if all ranks' blocks lay around it
  char* output;
  // Where each rank reaches the arrays, for direct calls. 0 on some rank: not all do, and the interpreter
  // takes the call.
  std::uint64_t inputs[most_ranks], outputs[most_ranks];
  Share share;                 // direct and flagged
  const FlatProgram* program;  // the interpreter's; null for a direct call if all ranks reach all arrays
  char* temp;                  // the interpreter's, for all blocks
  Scale last;                  // completes a result: an average divides
  Scale own;                   // the factor of this rank's values when they are first read
  bool scales;                 // whether the interpreter must apply it
  Boxes boxes;
  char* memories[most_ranks];  // each rank's boxes, where this rank reaches them
  Report* report;              // this rank's
};

// Sets what each block would have to compute.
inline Errand prepared(Errand errand) {
  errand.share.shift = static_cast<std::int8_t>(shift_of_tiles(errand.boxes, errand.share));
  return errand;
}

}  // namespace ringreduce::device

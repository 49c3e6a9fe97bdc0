// How blocks of one rank send to the same blocks of others: a sender leaves a message in its own arena, and
// tells each receiver where; a receiver reads it there, and says when it is done.
//
// A rank's boxes are one piece of memory that all ranks can reach, zeros at first. A call begins with an
// empty arena: whoever has messages of an earlier call there waits until they have been read. Messages are
// numbered from 1, and numbers go on from call to call.
#pragma once

#include "cuda/flat_program.h"
#include "device.h"  // of nvcc or emulated

namespace ringreduce::device {

// How a rank's boxes are laid out; the same for all ranks.
struct Boxes {
  std::int32_t blocks;
  std::int32_t world;
  std::uint64_t arena_bytes;  // of a block, in lines

  RINGREDUCE_ANYWHERE static std::uint64_t in_lines(std::uint64_t bytes) {
    return (bytes + line - 1) / line * line;
  }

  // What peers write: where their messages are, by number, and how many of this rank's they have read. And
  // what a block keeps from call to call: how many it has sent to each peer, and received from each.
  RINGREDUCE_ANYWHERE std::uint64_t posted_bytes() const { return in_lines(8ull * world * most_slots); }
  RINGREDUCE_ANYWHERE std::uint64_t counts_bytes() const { return in_lines(8ull * 3 * world); }
  RINGREDUCE_ANYWHERE std::uint64_t block_bytes() const {
    return posted_bytes() + counts_bytes() + arena_bytes;
  }
  RINGREDUCE_ANYWHERE std::uint64_t bytes() const {
    return block_bytes() * static_cast<std::uint64_t>(blocks);
  }
};

// Where a message is, as it is posted: its number, and its offset in the sender's arena. Numbers come again
// after as many messages as a block sends in weeks.
inline constexpr int place_bits = 24;
RINGREDUCE_DEVICE std::uint64_t posting(std::uint64_t number, std::uint64_t offset) {
  return number << place_bits | offset / line;
}
RINGREDUCE_DEVICE bool is_posting_of(std::uint64_t word, std::uint64_t number) {
  return word >> place_bits == number << place_bits >> place_bits;
}
RINGREDUCE_DEVICE std::uint64_t offset_in(std::uint64_t word) {
  return (word & ((std::uint64_t{1} << place_bits) - 1)) * line;
}

// One block's box in a rank's memory.
class Box {
 public:
  RINGREDUCE_DEVICE Box(const Boxes& boxes, char* memory, int block)
      : boxes_(boxes), at_(memory + boxes.block_bytes() * static_cast<std::uint64_t>(block)) {}

  // Written by `peer`: the posting of message `number`, modulo most_slots.
  RINGREDUCE_DEVICE std::uint64_t* posted(int peer, std::uint64_t number) const {
    return words() + static_cast<std::uint64_t>(peer) * most_slots + number % most_slots;
  }
  // Written by `peer`: how many messages of this rank it has read.
  RINGREDUCE_DEVICE std::uint64_t* read_by(int peer) const { return counts() + peer; }
  // This rank's own counts.
  RINGREDUCE_DEVICE std::uint64_t* sent_to(int peer) const { return counts() + boxes_.world + peer; }
  RINGREDUCE_DEVICE std::uint64_t* received_from(int peer) const {
    return counts() + 2 * boxes_.world + peer;
  }
  RINGREDUCE_DEVICE char* arena() const { return at_ + boxes_.posted_bytes() + boxes_.counts_bytes(); }

 private:
  RINGREDUCE_DEVICE std::uint64_t* words() const { return reinterpret_cast<std::uint64_t*>(at_); }
  RINGREDUCE_DEVICE std::uint64_t* counts() const {
    return reinterpret_cast<std::uint64_t*>(at_ + boxes_.posted_bytes());
  }

  const Boxes& boxes_;
  char* const at_;
};

}  // namespace ringreduce::device

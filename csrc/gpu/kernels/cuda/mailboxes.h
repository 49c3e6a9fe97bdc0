// How blocks of one rank meet the same blocks of others, in boxes that all of them can reach, initially zero.
//
// The interpreter's messages: a sender leaves one in its own arena, and tells each receiver where. A receiver
// reads it there, and reports that it has. A call begins with an empty arena: a rank that still has messages
// of an earlier call there waits until they have been read. Messages are numbered from 1, and numbers
// continue from call to call.
#pragma once

#include "device.h"  // of nvcc or emulated
#include "gpu/kernels/cuda/errand.h"

namespace ringreduce::device {

// A posting says where a message is: its number, the part of its call that must equal the receiver's, and its
// offset in the sender's arena. Numbers repeat after sixteen million messages; a word is overwritten after
// most_slots.
inline constexpr int place_bits = 24, contract_bits = 16;

RINGREDUCE_DEVICE std::uint64_t short_contract(std::uint64_t contract) {
  return contract & ((std::uint64_t{1} << contract_bits) - 1);
}
RINGREDUCE_DEVICE std::uint64_t posting(std::uint64_t number, std::uint64_t contract, std::uint64_t offset) {
  return (number << contract_bits | short_contract(contract)) << place_bits | offset / line;
}
RINGREDUCE_DEVICE bool is_posting_of(std::uint64_t word, std::uint64_t number) {
  constexpr int above = place_bits + contract_bits;
  return word >> above == number << above >> above;
}
RINGREDUCE_DEVICE bool is_under(std::uint64_t word, std::uint64_t contract) {
  return short_contract(word >> place_bits) == short_contract(contract);
}
RINGREDUCE_DEVICE std::uint64_t offset_in(std::uint64_t word) {
  return (word & ((std::uint64_t{1} << place_bits) - 1)) * line;
}

// One block's box in a rank's memory.
class Box {
 public:
  RINGREDUCE_DEVICE Box(const Boxes& boxes, char* memory, int block)
      : boxes_(boxes),
        words_(memory + boxes.words_bytes() * static_cast<std::uint64_t>(block)),
        at_(memory + boxes.all_words_bytes() + boxes.block_bytes() * static_cast<std::uint64_t>(block)) {}

  // Written by `peer`: the posting of message `number`, modulo most_slots.
  RINGREDUCE_DEVICE std::uint64_t* posted(int peer, std::uint64_t number) const {
    return reinterpret_cast<std::uint64_t*>(at_) + static_cast<std::uint64_t>(peer) * most_slots +
           number % most_slots;
  }
  // Written by `peer`: how many messages of this rank it has read.
  RINGREDUCE_DEVICE std::uint64_t* read_by(int peer) const { return word(0, peer); }
  // This rank's own counts of messages.
  RINGREDUCE_DEVICE std::uint64_t* sent_to(int peer) const { return word(1, peer); }
  RINGREDUCE_DEVICE std::uint64_t* received_from(int peer) const { return word(2, peer); }
  // Written by `peer` if ranks access each other's memory: its input and output, the meeting that it has
  // reached, and the part of its call that must equal this rank's.
  RINGREDUCE_DEVICE std::uint64_t* input_of(int peer) const { return word(3, peer); }
  RINGREDUCE_DEVICE std::uint64_t* output_of(int peer) const { return word(4, peer); }
  RINGREDUCE_DEVICE std::uint64_t* come(int peer) const { return word(5, peer); }
  // This rank's own counts.
  RINGREDUCE_DEVICE std::uint64_t* meetings() const { return word(6, 0); }
  RINGREDUCE_DEVICE std::uint64_t* phases() const { return word(6, 0) + 1; }
  RINGREDUCE_DEVICE std::uint64_t* calls() const { return word(6, 0) + 2; }
  // Not 0 during a call, and forever after one that was given up.
  RINGREDUCE_DEVICE std::uint64_t* is_in_call() const { return word(6, 0) + 3; }
  // Written by peers: what they send in this phase.
  RINGREDUCE_DEVICE char* place(std::uint64_t phase) const {
    return at_ + boxes_.posted_bytes() + flagged_round_bytes * (phase % 2);
  }
  // Written by `peer`: the contract of its call, in the round that begins with this phase.
  RINGREDUCE_DEVICE char* contract_from(int peer, std::uint64_t phase) const {
    return at_ + boxes_.posted_bytes() + 2 * flagged_round_bytes +
           flagged_word_bytes * (4 * static_cast<std::uint64_t>(peer) + phase % 4);
  }
  RINGREDUCE_DEVICE char* arena() const { return at_ + boxes_.posted_bytes() + boxes_.flagged_bytes(); }

 private:
  RINGREDUCE_DEVICE std::uint64_t* word(int kind, int peer) const {
    return reinterpret_cast<std::uint64_t*>(words_) + kind * boxes_.world + peer;
  }

  const Boxes& boxes_;
  char *const words_, *const at_;
};

// The words of a lane, in a rank's memory: for slices from a peer to it, and for slices of its own to that
// peer. Slices are numbered from 1, and numbers continue from message to message.
class LaneBox {
 public:
  RINGREDUCE_DEVICE LaneBox(const Boxes& boxes, char* memory, int peer, int lane)
      : at_(memory + boxes.collectives_bytes() +
            Boxes::lane_bytes() * static_cast<std::uint64_t>(peer * boxes.lanes + lane)) {}

  // Written by the peer: the number of a slice that has been posted, and its message's label.
  RINGREDUCE_DEVICE std::uint64_t* posted(std::uint64_t number) const { return word(number % 2); }
  RINGREDUCE_DEVICE std::uint64_t* label(std::uint64_t number) const { return word(2 + number % 2); }
  // Written by the peer: how many of this rank's slices it has read.
  RINGREDUCE_DEVICE std::uint64_t* read() const { return word(4); }
  // This rank's own counts of slices and messages, received (0) and sent (1); and whether a message is in
  // work, forever after one that was given up.
  RINGREDUCE_DEVICE std::uint64_t* slices(int sends) const { return word(5 + sends); }
  RINGREDUCE_DEVICE std::uint64_t* messages(int sends) const { return word(7 + sends); }
  RINGREDUCE_DEVICE std::uint64_t* is_in_work(int sends) const { return word(9 + sends); }
  // Where a slice of this rank lies until it has been read.
  RINGREDUCE_DEVICE char* slice(std::uint64_t number) const {
    return at_ + line + message_slice * (number % 2);
  }

 private:
  RINGREDUCE_DEVICE std::uint64_t* word(std::uint64_t index) const {
    return reinterpret_cast<std::uint64_t*>(at_) + index;
  }

  char* const at_;
};

}  // namespace ringreduce::device

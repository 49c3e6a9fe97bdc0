// For ranks that can access each other's memory: each combines its share of all inputs and writes it to all
// outputs. An all-reduce moves 2 N S bytes in all, the minimum. Blocks with the same number on different
// ranks work together. They meet before, when the inputs are ready, and after, when no rank reads or writes
// their memory any more.
#pragma once

#include "gpu/kernels/cuda/rank_block.h"

namespace ringreduce::device {

// Data that the threads of a block share.
struct DirectShared {
  Spans spans;
  bool reaches_all;
};

class Direct : RankBlock {
 public:
  RINGREDUCE_DEVICE Direct(Block& block, DirectShared& shared, const Errand& errand, const Pass& pass)
      : RankBlock(block, errand, pass), shared_(shared) {}

  // False, on all ranks: some rank does not reach all arrays. The call has begun, and the interpreter
  // continues it.
  RINGREDUCE_DEVICE bool run() {
    if (!block_.leader([&] { return begin(); })) return true;
    const bool reaches_all = shared_.reaches_all;
    if (reaches_all) {
      block_.all([&](std::size_t thread, std::size_t threads) { pass_.run(shared_.spans, thread, threads); });
    }
    return !block_.leader([&] { return meet(false) && !(reaches_all && end_direct_call()); });
  }

 private:
  RINGREDUCE_DEVICE bool begin() {
    if (!begin_call()) return false;
    for (int peer = 0; peer < errand_.boxes.world; ++peer) {
      const Box box = box_of(peer);
      *box.input_of(errand_.rank) = errand_.inputs[peer];
      *box.output_of(errand_.rank) = errand_.outputs[peer];
    }
    if (!meet(true)) return false;
    tell_begun();
    find_spans();
    return true;
  }

  RINGREDUCE_DEVICE bool end_direct_call() {
    if (block_.index() == 0) tell_host(&errand_.report->direct, *box_.calls());
    return end_call();
  }

  // A peer may already be at the next meeting: of the same call, if calls are compared.
  RINGREDUCE_DEVICE bool meet(bool compares) {
    const std::uint64_t number = ++*box_.meetings();
    const std::uint64_t word = number << contract_bits | short_contract(errand_.contract);
    fence();
    for (int peer = 0; peer < errand_.boxes.world; ++peer)
      store_relaxed(box_of(peer).come(errand_.rank), word);
    // A call that was given up before all ranks came touches no other rank's memory, because peers may be
    // gone by then. The flag is loaded early, because host memory is far.
    const std::uint64_t given_up = compares ? load_relaxed(&errand_.report->abort) : 0;
    for (int peer = 0; peer < errand_.boxes.world; ++peer) {
      std::uint64_t theirs = 0;
      const auto is_here = [&] {
        theirs = load_relaxed(box_.come(peer));
        return theirs >> contract_bits >= number;
      };
      if (!wait_until(is_here)) return leave(compares);
      if (compares && short_contract(theirs) != short_contract(word)) return differs(peer);
    }
    fence();
    return given_up == 0 || leave(compares);
  }

  // Gives up. Peers that have not seen this rank come leave its memory alone. Those that have get time to
  // finish there.
  RINGREDUCE_DEVICE bool leave(bool has_just_come) {
    for (int peer = 0; has_just_come && peer < errand_.boxes.world; ++peer)
      store_relaxed(box_of(peer).come(errand_.rank), 0);
    wait_long();
    return false;
  }

  // For this block.
  RINGREDUCE_DEVICE void find_spans() {
    const Share& share = errand_.share;
    // In packs, so that a block's part is aligned like the share.
    const std::uint64_t packs = (share.bytes + pack_bytes - 1) / pack_bytes;
    const auto cut = [&](int block) {
      const std::uint64_t at = packs * block / block_.count() * pack_bytes;
      return at < share.bytes ? at : share.bytes;
    };
    const std::uint64_t begin = cut(block_.index()), end = cut(block_.index() + 1);
    Spans& spans = shared_.spans;
    spans.source_count = spans.destination_count = 0;
    spans.scale = errand_.last;
    spans.count = (end - begin) / pass_.element_bytes;
    shared_.reaches_all = true;
    for (int rank = 0; rank < errand_.boxes.world; ++rank) {
      const bool own = rank == errand_.rank;
      if (own || share.from_all) {
        const auto* const input = reinterpret_cast<const char*>(reached(box_.input_of(rank)));
        spans.sources[spans.source_count++] = input + share.source + begin;
      }
      if (own || share.to_all) {
        auto* const output = reinterpret_cast<char*>(reached(box_.output_of(rank)));
        spans.destinations[spans.destination_count++] = output + share.target + begin;
      }
    }
  }

  RINGREDUCE_DEVICE std::uint64_t reached(const std::uint64_t* word) {
    const std::uint64_t place = load_relaxed(word);
    if (errand_.program && place == 0) shared_.reaches_all = false;
    return place;
  }

  DirectShared& shared_;
};

}  // namespace ringreduce::device

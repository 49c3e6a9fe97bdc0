// For ranks that can access each other's memory: each combines or copies its share of the inputs, and writes
// it to the outputs. An all-reduce moves 2 N S bytes in all, the minimum. Blocks with the same number on
// different ranks work together. They meet before, when the inputs are ready, and after, when no rank reads
// or writes their memory any more.
#pragma once

#include "gpu/kernels/cuda/rank_block.h"

namespace ringreduce::device {

// Data that the threads of a block share.
struct DirectShared {
  Spans spans;
  std::uint64_t calls;
  std::uint64_t meetings;  // before this call
  std::uint64_t begin;     // of this block's part: bytes
  bool reaches_all;
  const char* exchanged[most_ranks];  // from each rank
};

class Direct : RankBlock {
 public:
  RINGREDUCE_DEVICE Direct(Block& block, DirectShared& shared, const Errand& errand, const Pass& pass)
      : RankBlock(block, errand, pass), shared_(shared) {}

  // False, on all ranks: some rank does not reach all arrays. The call has begun, and the interpreter
  // continues it.
  RINGREDUCE_DEVICE bool run() {
    if (!block_.leader([&] { return begin(); })) return true;
    calls_ = shared_.calls;
    if (!meet(true)) return true;
    const bool reaches_all = shared_.reaches_all;
    block_.alone([&] { tell_begun(); });
    if (reaches_all) errand_.share.exchanges ? exchange_all() : move();
    if (!meet(false)) return true;
    if (reaches_all) block_.leader([&] { return end_direct_call(); });
    return reaches_all;
  }

 private:
  RINGREDUCE_DEVICE bool begin() {
    const std::uint64_t meetings = *box_.meetings();
    if (!begin_call()) return false;
    *box_.meetings() = meetings + 2;
    shared_.calls = calls_;
    shared_.meetings = meetings;
    shared_.reaches_all = true;
    return true;
  }

  RINGREDUCE_DEVICE void move() {
    block_.all([&](std::size_t thread, std::size_t threads) {
      (errand_.share.copies ? pass_bytes : pass_.run)(shared_.spans, thread, threads);
    });
  }

  // Ranks begin with different peers.
  RINGREDUCE_DEVICE void exchange_all() {
    for (int i = 0; i < errand_.boxes.world; ++i) {
      const int peer = (errand_.rank + i) % errand_.boxes.world;
      block_.leader([&] {
        shared_.spans.sources[0] = shared_.exchanged[peer];
        shared_.spans.destinations[0] =
            errand_.output + errand_.share.bytes * static_cast<std::uint64_t>(peer) + shared_.begin;
        return true;
      });
      move();
    }
  }

  RINGREDUCE_DEVICE bool end_direct_call() {
    if (block_.index() == 0) tell_host(&errand_.report->direct, calls_);
    return end_call();
  }

  // Each thread meets one peer. A peer may already be at the next meeting: of the same call, if calls are
  // compared.
  RINGREDUCE_DEVICE bool meet(bool is_first) {
    const std::uint64_t number = shared_.meetings + (is_first ? 1 : 2);
    block_.all([&](std::size_t thread, std::size_t threads) {
      each_peer(thread, threads, [&](int peer) { return come_to(peer, number, is_first); });
      if (is_first && thread == threads - 1) find_part();  // a thread that has no peer
    });
    const bool met = block_.every([&](std::size_t thread, std::size_t threads) {
      return each_peer(thread, threads, [&](int peer) { return await(peer, number, is_first); });
    });
    if (!met) block_.alone([&] { part(number, is_first); });
    return met;
  }

  template <class Body>
  RINGREDUCE_DEVICE bool each_peer(std::size_t thread, std::size_t threads, Body body) const {
    for (int peer = static_cast<int>(thread); peer < errand_.boxes.world; peer += static_cast<int>(threads)) {
      if (!body(peer)) return false;
    }
    return true;
  }

  RINGREDUCE_DEVICE bool come_to(int peer, std::uint64_t number, bool is_first) const {
    const Box box = box_of(peer);
    if (is_first) {
      *box.input_of(errand_.rank) = errand_.inputs[peer];
      *box.output_of(errand_.rank) = errand_.outputs[peer];
    }
    release_fence();
    store_relaxed(box.come(errand_.rank), number << contract_bits | short_contract(errand_.contract));
    return true;
  }

  RINGREDUCE_DEVICE bool await(int peer, std::uint64_t number, bool is_first) {
    // A call that was given up before all ranks came touches no other rank's memory, because peers may be
    // gone by then. The flag is loaded early, because host memory is far.
    const bool checks = is_first && peer == errand_.rank;
    const std::uint64_t given_up = checks ? abort_flag(*errand_.report, block_) : 0;
    std::uint64_t theirs = 0;
    const auto is_here = [&] {
      theirs = load_relaxed(box_.come(peer));
      return theirs >> contract_bits >= number;
    };
    if (!wait_until(is_here) || (is_first && !is_alike(theirs))) return false;
    acquire_fence();
    if (given_up != 0) return false;
    if (is_first) add_spans_of(peer);
    return true;
  }

  RINGREDUCE_DEVICE bool is_alike(std::uint64_t theirs) const {
    return short_contract(theirs) == short_contract(errand_.contract);
  }

  // Names the first peer that has made another call. Without one, this call was given up: peers that have not
  // seen this rank come leave its memory alone, and those that have get time to finish there.
  RINGREDUCE_DEVICE void part(std::uint64_t number, bool is_first) const {
    for (int peer = 0; is_first && peer < errand_.boxes.world; ++peer) {
      const std::uint64_t theirs = load_relaxed(box_.come(peer));
      if (theirs >> contract_bits >= number && !is_alike(theirs)) {
        differs(peer);
        return;
      }
    }
    for (int peer = 0; is_first && peer < errand_.boxes.world; ++peer) {
      store_relaxed(box_of(peer).come(errand_.rank), 0);
    }
    wait_long();
  }

  // This block's part of the share, in packs, so that it is aligned like the share.
  RINGREDUCE_DEVICE void find_part() {
    const Share& share = errand_.share;
    const std::uint64_t packs = (share.bytes + pack_bytes - 1) / pack_bytes;
    const auto cut = [&](int block) {
      const std::uint64_t at = packs * block / block_.count() * pack_bytes;
      return at < share.bytes ? at : share.bytes;
    };
    shared_.begin = cut(block_.index());
    Spans& spans = shared_.spans;
    spans.source_count = share.exchanges ? 1 : share.from.end - share.from.begin;
    spans.destination_count = share.exchanges ? 1 : share.to.end - share.to.begin;
    spans.scale = errand_.last;
    spans.count = (cut(block_.index() + 1) - shared_.begin) / pass_.element_bytes;
  }

  RINGREDUCE_DEVICE void add_spans_of(int peer) {
    const Share& share = errand_.share;
    if (share.from.contains(peer)) {
      const auto* const input =
          reinterpret_cast<const char*>(reached(box_.input_of(peer), share.from_others));
      (share.exchanges ? shared_.exchanged[peer] : shared_.spans.sources[peer - share.from.begin]) =
          input + share.source + shared_.begin;
    }
    if (share.to.contains(peer)) {
      auto* const output = reinterpret_cast<char*>(reached(box_.output_of(peer), share.to_others));
      shared_.spans.destinations[peer - share.to.begin] = output + share.target + shared_.begin;
    }
  }

  RINGREDUCE_DEVICE std::uint64_t reached(const std::uint64_t* word, bool of_others) {
    const std::uint64_t place = load_relaxed(word);
    if (of_others && errand_.program && place == 0) shared_.reaches_all = false;
    return place;
  }

  DirectShared& shared_;
};

}  // namespace ringreduce::device

// The all-reduce of small messages: every rank sends everything to every other, and combines what arrives in
// rank order. A word is half data, half flag (as in NCCL's LL protocol), so a reader that sees the flag has
// the data, and waits once.
//
// A block sends and combines its part one tile at a time. There are two places for tiles from each peer: a
// rank that has received tile k + 1 of a peer knows that this peer has finished with tile k of all. With its
// first tile, a block sends the call's whole contract, and combines nothing before all peers' are equal to
// it.
#pragma once

#include "gpu/kernels/cuda/rank_block.h"

namespace ringreduce::device {

inline constexpr std::uint64_t word_bytes = 8;  // of data; sixteen travel

// Data that the threads of a block share: a tile of each rank.
struct alignas(16) OneShotShared {
  char tiles[most_one_shot_ranks][tile_bytes];
  Spans spans;
};

class OneShot : RankBlock {
 public:
  RINGREDUCE_DEVICE OneShot(Block& block, OneShotShared& shared, const Errand& errand, const Pass& pass)
      : RankBlock(block, errand, pass), shared_(shared) {}

  RINGREDUCE_DEVICE void run() {
    if (!block_.leader([&] { return begin(); })) return;
    const std::uint64_t tiles = (errand_.share.bytes + tile_bytes - 1) / tile_bytes;
    std::uint64_t number = *box_.tiles();
    const std::uint64_t first = block_.index();
    for (std::uint64_t t = first; t < tiles && has_arena(); t += errand_.boxes.arenas()) {
      if (!tile(t * tile_bytes, ++number, t == first)) return;
    }
    block_.leader([&] {
      *box_.tiles() = number;
      return end_call();
    });
  }

 private:
  RINGREDUCE_DEVICE bool begin() {
    Spans& spans = shared_.spans;
    spans.scale = errand_.last;
    spans.source_count = errand_.boxes.world;
    for (int rank = 0; rank < errand_.boxes.world; ++rank) spans.sources[rank] = shared_.tiles[rank];
    spans.destination_count = 1;
    return begin_call();
  }

  RINGREDUCE_DEVICE bool tile(std::uint64_t begin, std::uint64_t number, bool is_first) {
    const std::uint64_t left = errand_.share.bytes - begin;
    const std::uint64_t bytes = left < tile_bytes ? left : tile_bytes;
    const std::uint32_t flag = flag_of(number);
    block_.alone([&] {
      shared_.spans.count = bytes / pass_.element_bytes;
      shared_.spans.destinations[0] = errand_.output + begin;
      if (is_first) send_contract(number, flag);
    });
    block_.all(
        [&](std::size_t thread, std::size_t threads) { send(begin, bytes, number, flag, thread, threads); });
    const bool came = block_.every([&](std::size_t thread, std::size_t threads) {
      if (is_first && thread == 0) {
        tell_begun();
        if (!compare_contracts(number, flag)) return false;
      }
      return receive(bytes, number, flag, thread, threads);
    });
    if (!came) return false;
    block_.all([&](std::size_t thread, std::size_t threads) { pass_.run(shared_.spans, thread, threads); });
    return true;
  }

  // Never 0.
  RINGREDUCE_DEVICE static std::uint32_t flag_of(std::uint64_t number) {
    return static_cast<std::uint32_t>(number % 0xffffffffu + 1);
  }

  RINGREDUCE_DEVICE void send_contract(std::uint64_t number, std::uint32_t flag) const {
    for (int peer = 0; peer < errand_.boxes.world; ++peer) {
      if (peer == errand_.rank) continue;
      store_flagged(box_of(peer).contract_from(errand_.rank, number), errand_.contract, flag);
    }
  }

  RINGREDUCE_DEVICE bool compare_contracts(std::uint64_t number, std::uint32_t flag) const {
    for (int peer = 0; peer < errand_.boxes.world; ++peer) {
      if (peer == errand_.rank) continue;
      std::uint64_t theirs = 0;
      const char* const from = box_.contract_from(peer, number);
      if (!is_here(from, flag, theirs)) return false;
      if (theirs != errand_.contract) return differs(peer);
    }
    return true;
  }

  RINGREDUCE_DEVICE void send(std::uint64_t begin, std::uint64_t bytes, std::uint64_t number,
                              std::uint32_t flag, std::size_t thread, std::size_t threads) {
    for (std::uint64_t at = thread * word_bytes; at < bytes; at += threads * word_bytes) {
      const std::uint64_t data = load_word(errand_.input + begin + at, bytes - at);
      store_aligned(shared_.tiles[errand_.rank] + at, data);
      for (int i = 1; i < errand_.boxes.world; ++i) {
        // Spreads the ranks over different first peers.
        const int peer = (errand_.rank + i) % errand_.boxes.world;
        store_flagged(box_of(peer).tile_from(errand_.rank, number) + 2 * at, data, flag);
      }
    }
  }

  RINGREDUCE_DEVICE bool receive(std::uint64_t bytes, std::uint64_t number, std::uint32_t flag,
                                 std::size_t thread, std::size_t threads) {
    for (std::uint64_t at = thread * word_bytes; at < bytes; at += threads * word_bytes) {
      for (int peer = 0; peer < errand_.boxes.world; ++peer) {
        if (peer == errand_.rank) continue;
        const char* const from = box_.tile_from(peer, number) + 2 * at;
        std::uint64_t data = 0;
        if (!is_here(from, flag, data)) return false;
        store_aligned(shared_.tiles[peer] + at, data);
      }
    }
    return true;
  }

  // Waits for the word. False: given up.
  RINGREDUCE_DEVICE bool is_here(const char* from, std::uint32_t flag, std::uint64_t& data) const {
    return device::wait_until(*errand_.report, [&] { return load_flagged(from, flag, data); }, [] {});
  }

  // The last word is only partly present.
  RINGREDUCE_DEVICE static std::uint64_t load_word(const char* from, std::uint64_t left) {
    if (left >= word_bytes && reinterpret_cast<std::uintptr_t>(from) % word_bytes == 0) {
      return load_aligned<std::uint64_t>(from);
    }
    std::uint64_t data = 0;
    for (std::uint64_t i = 0; i < word_bytes && i < left; ++i) {
      data |= static_cast<std::uint64_t>(static_cast<std::uint8_t>(from[i])) << (8 * i);
    }
    return data;
  }

  OneShotShared& shared_;
};

}  // namespace ringreduce::device

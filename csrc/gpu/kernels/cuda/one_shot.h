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
    std::uint64_t number = *box_.tiles();  // while the leader begins
    if (!block_.leader([&] { return begin(); })) return;
    const std::uint64_t tiles = (errand_.share.bytes + tile_bytes - 1) / tile_bytes;
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
    });
    // The last threads take the contracts, because a short message leaves them idle.
    block_.all([&](std::size_t thread, std::size_t threads) {
      if (is_first) send_contract(number, flag, threads - 1 - thread, threads);
      send(begin, bytes, number, flag, thread, threads);
    });
    const bool came = block_.every([&](std::size_t thread, std::size_t threads) {
      if (is_first && thread == 0) tell_begun();
      return (!is_first || compare_contracts(number, flag, threads - 1 - thread, threads)) &&
             receive(bytes, number, flag, thread, threads);
    });
    if (!came) return false;
    block_.all([&](std::size_t thread, std::size_t threads) { pass_.run(shared_.spans, thread, threads); });
    return true;
  }

  // Never 0.
  RINGREDUCE_DEVICE static std::uint32_t flag_of(std::uint64_t number) {
    return static_cast<std::uint32_t>(number % 0xffffffffu + 1);
  }

  RINGREDUCE_DEVICE void send_contract(std::uint64_t number, std::uint32_t flag, std::size_t thread,
                                       std::size_t threads) const {
    for (int peer = static_cast<int>(thread); peer < errand_.boxes.world; peer += static_cast<int>(threads)) {
      if (peer == errand_.rank) continue;
      store_flagged(box_of(peer).contract_from(errand_.rank, number), errand_.contract, flag);
    }
  }

  RINGREDUCE_DEVICE bool compare_contracts(std::uint64_t number, std::uint32_t flag, std::size_t thread,
                                           std::size_t threads) const {
    for (int peer = static_cast<int>(thread); peer < errand_.boxes.world; peer += static_cast<int>(threads)) {
      if (peer == errand_.rank) continue;
      std::uint64_t theirs = 0;
      const char* const from = box_.contract_from(peer, number);
      if (!wait([&] { return load_flagged(from, flag, theirs); })) return false;
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
    if (errand_.boxes.world <= 2) return receive_from<1>(bytes, number, flag, thread, threads);
    if (errand_.boxes.world <= 4) return receive_from<3>(bytes, number, flag, thread, threads);
    return receive_from<7>(bytes, number, flag, thread, threads);
  }

  // Loads the words of so many peers before it looks at the first.
  template <int together>
  RINGREDUCE_DEVICE bool receive_from(std::uint64_t bytes, std::uint64_t number, std::uint32_t flag,
                                      std::size_t thread, std::size_t threads) {
    for (std::uint64_t at = thread * word_bytes; at < bytes; at += threads * word_bytes) {
      for (int first = 1; first < errand_.boxes.world; first += together) {
        // The last peer stands for those that are missing.
        const auto peer = [&](int i) {
          const int far = first + i < errand_.boxes.world ? first + i : errand_.boxes.world - 1;
          return (errand_.rank + far) % errand_.boxes.world;
        };
        std::uint64_t data[together] = {};
        const auto are_here = [&] {
          bool all = true;
          RINGREDUCE_UNROLL
          for (int i = 0; i < together; ++i) {
            all &= load_flagged(box_.tile_from(peer(i), number) + 2 * at, flag, data[i]);
          }
          return all;
        };
        if (!wait(are_here)) return false;
        RINGREDUCE_UNROLL
        for (int i = 0; i < together; ++i) store_aligned(shared_.tiles[peer(i)] + at, data[i]);
      }
    }
    return true;
  }

  // False: given up.
  template <class Condition>
  RINGREDUCE_DEVICE bool wait(Condition holds) const {
    return device::wait_until(*errand_.report, block_, holds, [] {});
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

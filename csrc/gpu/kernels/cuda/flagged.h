// Short calls: ranks send each other words that are half data, half flag (as in NCCL's LL protocol). A reader
// that sees the flag has the data, so there are no fences, and no rank reaches another's arrays.
//
// A block works in rounds. In a round's first phase, ranks send each rank its tile. It combines the tiles in
// rank order, or copies them to its output. An all-reduce is one-shot or two-shot: either all ranks take the
// same tile, or each takes its own, and sends the result to all in a second phase.
//
// Phases are numbered from call to call, and take turns in two places. In each round, ranks also send their
// calls' whole contracts. They combine and copy nothing before all are equal. A peer whose contract has come
// has read all phases of earlier rounds. So a rank that sends phase k has met its peers after phase k - 2: in
// the round of phase k - 1 or, if that sends the results of phase k - 2, by receiving them.
#pragma once

#include "gpu/kernels/cuda/rank_block.h"

namespace ringreduce::device {

// Data that the threads of a block share: a tile of each rank.
struct alignas(16) FlaggedShared {
  char tiles[round_packs * pack_bytes];
  Spans spans;
};

class Flagged : RankBlock {
 public:
  RINGREDUCE_DEVICE Flagged(Block& block, FlaggedShared& shared, const Errand& errand, const Pass& pass)
      : RankBlock(block, errand, pass),
        shared_(shared),
        share_(errand.share),
        phases_(*box_.phases()),
        shift_(errand.share.shift) {}

  RINGREDUCE_DEVICE void run() {
    if (!block_.leader([&] { return begin(); })) return;
    const std::uint64_t step = round_bytes(errand_.boxes, share_, shift_), first = step * block_.index();
    for (at_ = first; at_ < share_.bytes && has_arena(); at_ += step * errand_.boxes.arenas()) {
      if (!first_phase(at_ == first) || (share_.spreads && !second_phase())) return;
    }
    block_.leader([&] {
      *box_.phases() = phases_;
      return end_call();
    });
  }

 private:
  static constexpr int together = 4;  // packs that a thread loads before it uses the first

  RINGREDUCE_DEVICE bool begin() {
    Spans& spans = shared_.spans;
    spans.scale = errand_.last;
    spans.source_count = errand_.boxes.world;
    for (int rank = 0; rank < errand_.boxes.world; ++rank) {
      spans.sources[rank] = tile_pack(static_cast<std::uint32_t>(rank) << shift_);
    }
    spans.destination_count = 1;
    return begin_call();
  }

  RINGREDUCE_DEVICE bool first_phase(bool is_first) {
    begin_phase();
    const std::uint32_t own = own_pack(0);
    const bool takes = share_.to.contains(errand_.rank);
    block_.alone([&] {
      const std::uint32_t tile = pack_bytes << shift_;
      const std::uint64_t left = is_there(own) ? left_at(own) : 0;
      shared_.spans.count = (left < tile ? static_cast<std::uint32_t>(left) : tile) / pass_.element_bytes;
      shared_.spans.destinations[0] = share_.spreads ? tile_pack(own) : place_in_output(own);
    });
    // The last threads take the contracts, because a short message leaves them idle.
    block_.all([&](std::size_t thread, std::size_t threads) {
      send_contract(threads - 1 - thread, threads);
      if (share_.from.contains(errand_.rank)) send_input(thread, threads);
    });
    const bool came = block_.every([&](std::size_t thread, std::size_t threads) {
      if (is_first && thread == 0) tell_begun();
      return compare_contracts(threads - 1 - thread, threads) && (!takes || take(thread, threads));
    });
    if (!came || !takes) return came;
    block_.all([&](std::size_t thread, std::size_t threads) {
      share_.copies ? copy(thread, threads) : pass_.run(shared_.spans, thread, threads);
    });
    return true;
  }

  RINGREDUCE_DEVICE bool second_phase() {
    begin_phase();
    block_.all([&](std::size_t thread, std::size_t threads) { send_results(thread, threads); });
    return block_.every([&](std::size_t thread, std::size_t threads) {
      return receive(
          thread, threads, [&](std::uint32_t pack) { return is_there(pack); },
          [&](std::uint32_t pack, const Words& data) { put_out(pack, data); });
    });
  }

  RINGREDUCE_DEVICE void begin_phase() {
    ++phases_;
    const std::uint64_t sum = (phases_ >> 32) + (phases_ & 0xffffffffu);  // modulo 2^32 - 1, but not 0
    flag_ = static_cast<std::uint32_t>(sum >> 32) + static_cast<std::uint32_t>(sum);
    place_ = static_cast<std::uint64_t>(box_.place(phases_) - errand_.memories[errand_.rank]);
  }

  // --- a round's packs: those of the first rank's tile, then those of the second's ----------------------

  RINGREDUCE_DEVICE std::uint32_t packs() const {
    return static_cast<std::uint32_t>(errand_.boxes.world) << shift_;
  }
  RINGREDUCE_DEVICE int rank_of(std::uint32_t pack) const { return static_cast<int>(pack >> shift_); }
  RINGREDUCE_DEVICE std::uint32_t in_tile(std::uint32_t pack) const { return pack & ((1u << shift_) - 1); }
  // The pack at the same place in this rank's tile.
  RINGREDUCE_DEVICE std::uint32_t own_pack(std::uint32_t pack) const {
    return static_cast<std::uint32_t>(errand_.rank) << shift_ | in_tile(pack);
  }
  RINGREDUCE_DEVICE char* tile_pack(std::uint32_t pack) const { return shared_.tiles + pack_bytes * pack; }
  // Bytes, in what all ranks share if they are two-shot, otherwise in each rank's block.
  RINGREDUCE_DEVICE std::uint64_t offset_of(std::uint32_t pack) const {
    return at_ + pack_bytes * (share_.spreads ? pack : in_tile(pack));
  }
  RINGREDUCE_DEVICE bool is_there(std::uint32_t pack) const { return offset_of(pack) < share_.bytes; }
  RINGREDUCE_DEVICE std::uint64_t left_at(std::uint32_t pack) const { return share_.bytes - offset_of(pack); }
  RINGREDUCE_DEVICE char* place_in_output(std::uint32_t pack) const {
    return errand_.output + share_.target + share_.target_step * static_cast<std::uint64_t>(rank_of(pack)) +
           offset_of(pack);
  }

  // --- sending ------------------------------------------------------------------------------------------

  RINGREDUCE_DEVICE void send_input(std::size_t thread, std::size_t threads) const {
    const auto goes = [&](std::uint32_t pack) {
      return pack < packs() && is_there(pack) && share_.to.contains(rank_of(pack));
    };
    RINGREDUCE_NO_UNROLL
    for (auto i = static_cast<std::uint32_t>(thread); i < packs(); i += together * threads) {
      Words data[together] = {};
      RINGREDUCE_UNROLL
      for (int t = 0; t < together; ++t) {
        const auto pack = static_cast<std::uint32_t>(i + t * threads);
        if (!goes(pack)) continue;
        data[t] =
            load_pack(errand_.input + share_.source +
                          share_.source_step * static_cast<std::uint64_t>(rank_of(pack)) + offset_of(pack),
                      left_at(pack));
      }
      RINGREDUCE_UNROLL
      for (int t = 0; t < together; ++t) {
        const auto pack = static_cast<std::uint32_t>(i + t * threads);
        if (!goes(pack)) continue;
        if (rank_of(pack) != errand_.rank) {
          send(pack, data[t]);
        } else {
          store_aligned(tile_pack(pack), data[t]);
        }
      }
    }
  }

  RINGREDUCE_DEVICE void send_results(std::size_t thread, std::size_t threads) const {
    RINGREDUCE_NO_UNROLL
    for (auto pack = static_cast<std::uint32_t>(thread); pack < packs(); pack += threads) {
      const std::uint32_t own = own_pack(pack);
      if (!is_there(own)) continue;
      const Words data = load_aligned<Words>(tile_pack(own));
      if (pack == own) {
        put_out(own, data);
      } else {
        send(pack, data);
      }
    }
  }

  // To the pack's rank.
  RINGREDUCE_DEVICE void send(std::uint32_t pack, const Words& data) const {
    char* const to = errand_.memories[rank_of(pack)] + place_ + flagged_word_bytes * own_pack(pack);
    store_flagged(to, word_of(data.at[0], data.at[1]), flag_);
    store_flagged(to + flagged_half_bytes, word_of(data.at[2], data.at[3]), flag_);
  }
  RINGREDUCE_DEVICE static std::uint64_t word_of(std::uint32_t low, std::uint32_t high) {
    return static_cast<std::uint64_t>(high) << 32 | low;
  }

  // --- receiving ----------------------------------------------------------------------------------------

  RINGREDUCE_DEVICE bool take(std::size_t thread, std::size_t threads) const {
    return receive(
        thread, threads,
        [&](std::uint32_t pack) { return is_there(own_pack(pack)) && share_.from.contains(rank_of(pack)); },
        [&](std::uint32_t pack, const Words& data) { store_aligned(tile_pack(pack), data); });
  }

  // The packs that other ranks send and this one wants. False: given up.
  template <class Wants, class Keep>
  RINGREDUCE_DEVICE bool receive(std::size_t thread, std::size_t threads, Wants wants, Keep keep) const {
    const char* const from = errand_.memories[errand_.rank] + place_;
    RINGREDUCE_NO_UNROLL
    for (auto i = static_cast<std::uint32_t>(thread); i < packs(); i += together * threads) {
      const auto pack = [&](int t) { return static_cast<std::uint32_t>(i + t * threads); };
      Words data[together] = {};
      bool comes[together] = {};
      RINGREDUCE_UNROLL
      for (int t = 0; t < together; ++t) {
        comes[t] = pack(t) < packs() && rank_of(pack(t)) != errand_.rank && wants(pack(t));
      }
      const auto are_here = [&] {
        bool all = true;
        RINGREDUCE_UNROLL
        for (int t = 0; t < together; ++t) {
          if (comes[t]) all &= load_pack_flagged(from + flagged_word_bytes * pack(t), data[t]);
        }
        return all;
      };
      if (!wait(are_here)) return false;
      RINGREDUCE_UNROLL
      for (int t = 0; t < together; ++t) {
        if (comes[t]) keep(pack(t), data[t]);
      }
    }
    return true;
  }

  RINGREDUCE_DEVICE bool load_pack_flagged(const char* from, Words& data) const {
    std::uint64_t low = 0, high = 0;
    const bool is_low_here = load_flagged(from, flag_, low);
    const bool is_high_here = load_flagged(from + flagged_half_bytes, flag_, high);
    data = {{static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32),
             static_cast<std::uint32_t>(high), static_cast<std::uint32_t>(high >> 32)}};
    return is_low_here && is_high_here;
  }

  RINGREDUCE_DEVICE void copy(std::size_t thread, std::size_t threads) const {
    RINGREDUCE_NO_UNROLL
    for (auto pack = static_cast<std::uint32_t>(thread); pack < packs(); pack += threads) {
      if (!is_there(pack) || !share_.from.contains(rank_of(pack))) continue;
      put_out(pack, load_aligned<Words>(tile_pack(pack)));
    }
  }

  RINGREDUCE_DEVICE void put_out(std::uint32_t pack, const Words& data) const {
    store_pack(place_in_output(pack), data, left_at(pack));
  }

  // --- contracts ----------------------------------------------------------------------------------------

  RINGREDUCE_DEVICE void send_contract(std::size_t thread, std::size_t threads) const {
    for (int peer = static_cast<int>(thread); peer < errand_.boxes.world; peer += static_cast<int>(threads)) {
      if (peer == errand_.rank) continue;
      store_flagged(box_of(peer).contract_from(errand_.rank, phases_), errand_.contract, flag_);
    }
  }

  RINGREDUCE_DEVICE bool compare_contracts(std::size_t thread, std::size_t threads) const {
    for (int peer = static_cast<int>(thread); peer < errand_.boxes.world; peer += static_cast<int>(threads)) {
      if (peer == errand_.rank) continue;
      std::uint64_t theirs = 0;
      const char* const from = box_.contract_from(peer, phases_);
      if (!wait([&] { return load_flagged(from, flag_, theirs); })) return false;
      if (theirs != errand_.contract) return differs(peer);
    }
    return true;
  }

  // False: given up.
  template <class Condition>
  RINGREDUCE_DEVICE bool wait(Condition holds) const {
    return device::wait_until(*errand_.report, block_, holds, [] {});
  }

  FlaggedShared& shared_;
  const Share& share_;
  std::uint64_t phases_;     // so far, with the present one
  std::uint32_t flag_ = 0;   // of this phase; never 0
  std::uint64_t place_ = 0;  // of this phase, in each rank's memory
  std::uint64_t at_ = 0;     // where this round's tiles begin: see offset_of
  const int shift_;          // a tile has 1 << shift_ packs
};

}  // namespace ringreduce::device

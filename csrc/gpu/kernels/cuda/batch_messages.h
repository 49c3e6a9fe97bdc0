// The messages of a batch of the interpreter's steps: waiting for those that arrive, finding room for those
// that are sent, and posting them.
#pragma once

#include "gpu/kernels/cuda/rank_block.h"

namespace ringreduce::device {

// The spans of one move.
struct MoveSpans {
  CodedSpans coded;
  bool combines;  // otherwise they are bytes
  bool converts;  // between arrays and float32
};

struct Post {
  std::uint64_t number, offset;
  std::int32_t peer;
};

// Data that the threads of a block share.
struct InterpreterShared {
  static constexpr std::size_t layout_bytes = 6 << 10;  // longer ones stay in the GPU's memory
  static constexpr int most_moves = 8;                  // at a time
  static constexpr int most_sources = 2 * most_ranks;   // of a batch: peers, and this rank for each step

  alignas(16) char layout[layout_bytes];  // of this slice
  FlatLayout head;
  MoveSpans moves[most_moves];
  std::uint64_t sent[most_ranks], received[most_ranks];  // messages, by peer
  // The arena is a ring. Messages of this call lie in it one after the other, starting with the oldest that
  // may still be read. Indexed by number modulo most_slots.
  std::uint64_t begins[most_slots];
  std::uint64_t holds[most_slots][most_ranks];  // by receiver: the number of the message, and the peer
  std::int32_t receivers[most_slots];           // how many
  std::int32_t oldest, posted;
  std::uint64_t head_of_arena;     // where it is free once the oldest are read
  std::uint64_t read[most_ranks];  // by peer: how many of this rank's messages, when last looked at
  std::uint64_t calls;
  char* temp;
  // Of a batch.
  char* staged[most_ranks];           // by message: where it is being written
  const char* arrived[most_sources];  // by source modulo their number: where it is read
  Post posts[most_ranks];
  std::int32_t post_count;
};

class BatchMessages : protected RankBlock {
 protected:
  static constexpr int most_sources = InterpreterShared::most_sources;

  RINGREDUCE_DEVICE BatchMessages(Block& block, InterpreterShared& shared, const Errand& errand,
                                  const Pass& pass)
      : RankBlock(block, errand, pass), shared_(shared) {}

  // Of this slice's layout.
  template <class T>
  RINGREDUCE_DEVICE const T* part(std::uint32_t offset) const {
    return reinterpret_cast<const T*>(layout_ + offset);
  }

  // Each thread waits for one peer's message, and the last one for the space of this rank's.
  RINGREDUCE_DEVICE bool prepare(const FlatBatch& batch) {
    return block_.every([&](std::size_t thread, std::size_t threads) {
      const std::int32_t* const sources = part<std::int32_t>(shared_.head.sources);
      for (int i = batch.sources_begin + static_cast<int>(thread); i < batch.sources_end;
           i += static_cast<int>(threads)) {
        if (sources[i] >= 0 && !await(sources[i], shared_.arrived[i % most_sources])) return false;
      }
      return thread != threads - 1 || take_rooms(batch);
    });
  }

  RINGREDUCE_DEVICE bool await(int peer, const char*& arrived) const {
    const std::uint64_t number = shared_.received[peer] + 1;
    const std::uint64_t* const posted = box_.posted(peer, number);
    std::uint64_t word = 0;
    const auto is_here = [&] {
      word = load_relaxed(posted);
      return is_posting_of(word, number);
    };
    if (!wait_until(is_here)) return false;
    if (!is_under(word, errand_.contract)) return differs(peer);
    arrived = box_of(peer).arena() + offset_in(word);
    return acquired();
  }

  // Finds space for the messages of a batch, and numbers them. They are posted later, but no earlier batch's
  // wait for them.
  RINGREDUCE_DEVICE bool take_rooms(const FlatBatch& batch) {
    const std::int32_t* const receivers = part<std::int32_t>(shared_.head.receivers);
    const std::int32_t oldest = shared_.oldest;
    int posts = 0;
    for (int m = batch.messages_begin; m < batch.messages_end; ++m) {
      const FlatMessage message = part<FlatMessage>(shared_.head.messages)[m];
      // An empty one also has a place of its own, so that the next does not wait for it.
      const std::uint64_t bytes = Boxes::in_lines(message.bytes > 0 ? message.bytes : 1);
      if (!take_room(bytes)) return false;
      const std::uint64_t at = shared_.head_of_arena;
      const int slot = shared_.posted++ % most_slots;
      shared_.staged[m - batch.messages_begin] = box_.arena() + at;
      shared_.begins[slot] = at;
      shared_.head_of_arena = at + bytes;
      shared_.receivers[slot] = message.receivers_end - message.receivers_begin;
      for (int r = message.receivers_begin; r < message.receivers_end; ++r) {
        const std::int32_t peer = receivers[r];
        const std::uint64_t number = ++shared_.sent[peer];
        shared_.holds[slot][r - message.receivers_begin] =
            number << peer_bits | static_cast<std::uint64_t>(peer);
        shared_.posts[posts++] = {number, at, peer};
      }
    }
    shared_.post_count = posts;
    return shared_.oldest == oldest || acquired();
  }

  // Finds space that no rank reads any more. It can only wait for messages of rounds before the last one: the
  // arena holds those of two rounds, wherever it begins (gpu/kernels/flatten.cpp).
  RINGREDUCE_DEVICE bool take_room(std::uint64_t bytes) {
    std::uint64_t& head = shared_.head_of_arena;
    const auto begin_of_oldest = [&] { return shared_.begins[shared_.oldest % most_slots]; };
    const auto any = [&] { return shared_.oldest < shared_.posted; };
    if (head + bytes > errand_.boxes.arena_bytes) {
      while (any() && begin_of_oldest() >= head) {
        if (!wait_for_the_oldest()) return false;
      }
      head = 0;
    }
    while (any() && (shared_.posted - shared_.oldest == most_slots ||
                     (begin_of_oldest() >= head && begin_of_oldest() < head + bytes))) {
      if (!wait_for_the_oldest()) return false;
    }
    return true;
  }

  RINGREDUCE_DEVICE bool wait_for_the_oldest() {
    const int slot = shared_.oldest++ % most_slots;
    for (int i = 0; i < shared_.receivers[slot]; ++i) {
      const std::uint64_t held = shared_.holds[slot][i];
      const auto peer = static_cast<int>(held % most_ranks);
      std::uint64_t& read = shared_.read[peer];
      const auto has_read = [&] { return read >= held >> peer_bits; };
      if (!has_read() && !wait_until([&] { return read = load_relaxed(box_.read_by(peer)), has_read(); })) {
        return false;
      }
    }
    return true;
  }

  // Posts the messages of a batch, and tells the peers whose messages it has read that they may overwrite
  // them. Each thread writes a word.
  RINGREDUCE_DEVICE void tell(const FlatBatch& batch) {
    block_.all([&](std::size_t thread, std::size_t threads) {
      const int posts = shared_.post_count;
      const int all = posts + batch.sources_end - batch.sources_begin;
      const std::int32_t* const sources = part<std::int32_t>(shared_.head.sources);
      for (int i = static_cast<int>(thread); i < all; i += static_cast<int>(threads)) {
        if (i < static_cast<int>(threads)) release_fence();  // one for a warp
        if (i < posts) {
          const Post post = shared_.posts[i];
          store_relaxed(box_of(post.peer).posted(errand_.rank, post.number),
                        posting(post.number, errand_.contract, post.offset));
        } else if (const int peer = sources[batch.sources_begin + i - posts]; peer >= 0) {
          store_relaxed(box_of(peer).read_by(errand_.rank), ++shared_.received[peer]);
        }
      }
    });
  }

  InterpreterShared& shared_;
  const char* layout_ = nullptr;  // of this slice

 private:
  static constexpr int peer_bits = 5;
  static_assert(1 << peer_bits == most_ranks);
};

}  // namespace ringreduce::device

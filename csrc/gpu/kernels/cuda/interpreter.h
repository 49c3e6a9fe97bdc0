// Walks a program, in one block of one rank's kernel. Each slice belongs to a block, the same on all ranks,
// and blocks with the same number on different ranks exchange messages. Several blocks keep several slices in
// flight; a block runs one batch of steps after the other.
//
// All ranks' blocks must run at the same time, because they wait for each other. A schedule that is free of
// deadlock with unbuffered sends is then free of it here: the sends of a round do not wait for each other's
// slots, and what a batch waits for, its peers post without waiting for anything that this batch releases or
// posts, because they wait for the rounds before only. No wait lasts forever: one that sees the abort flag
// ends, and its block with it. The memory of the messages is unusable after that.
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

// `coded`: messages are encoded, and all spans are of float32.
template <bool coded>
class InterpreterOf : RankBlock {
  static constexpr int most_sources = InterpreterShared::most_sources;

 public:
  RINGREDUCE_DEVICE InterpreterOf(Block& block, InterpreterShared& shared, const Errand& errand,
                                  const Pass& pass)
      : RankBlock(block, errand, pass), shared_(shared), program_(*errand.program) {}

  RINGREDUCE_DEVICE void run() {
    if (!begin()) return;
    const std::uint64_t first = block_.index(), step = errand_.boxes.arenas();
    const std::uint64_t slices = program_.slices, bytes = program_.shift;
    for (std::uint64_t s = first; s < slices && has_arena(); s += step) {
      if (s >= next_) {
        find_layout(s);
        block_.meet();  // others may still look at the last one
        block_.all([&](std::size_t thread, std::size_t threads) { copy_layout(thread, threads); });
      }
      shift_ = (s - shared_.head.first) * bytes;
      for (int i = 0; i < shared_.head.batches; ++i) {
        if (!run_batch(part<FlatBatch>(0)[i])) return;
      }
      if (s == first) block_.alone([&] { tell_begun(); });
    }
    end();
  }

 private:
  // --- the call ------------------------------------------------------------------------------------------

  template <class Body>
  RINGREDUCE_DEVICE bool each_peer(std::size_t thread, std::size_t threads, Body body) const {
    for (int peer = static_cast<int>(thread); peer < errand_.boxes.world; peer += static_cast<int>(threads)) {
      if (!body(peer)) return false;
    }
    return true;
  }

  RINGREDUCE_DEVICE bool begin() {
    find_layout(block_.index());
    const bool begun = block_.every([&](std::size_t thread, std::size_t threads) {
      copy_layout(thread, threads);  // while the leader begins
      each_peer(thread, threads, [&](int peer) {
        shared_.sent[peer] = *box_.sent_to(peer);
        shared_.received[peer] = *box_.received_from(peer);
        shared_.read[peer] = 0;
        return true;
      });
      return thread != 0 || begin_alone();
    });
    if (begun) calls_ = shared_.calls;
    return begun;
  }

  RINGREDUCE_DEVICE bool begin_alone() {
    if (errand_.duty != Duty::direct && !begin_call()) return false;
    shared_.calls = calls_;
    shared_.oldest = shared_.posted = 0;
    shared_.head_of_arena = 0;
    shared_.temp = errand_.temp + program_.temp_bytes * static_cast<std::uint64_t>(block_.index());
    return true;
  }

  // After its kernel has ended, no rank reads or writes this rank's boxes.
  RINGREDUCE_DEVICE void end() {
    const bool all_read = block_.every([&](std::size_t thread, std::size_t threads) {
      return each_peer(thread, threads, [&](int peer) {
        *box_.sent_to(peer) = shared_.sent[peer];
        *box_.received_from(peer) = shared_.received[peer];
        const auto has_read = [&] { return load_relaxed(box_.read_by(peer)) >= shared_.sent[peer]; };
        return wait_until(has_read) && acquired();
      });
    });
    if (all_read) block_.leader([&] { return end_call(); });
  }

  // --- slices --------------------------------------------------------------------------------------------

  // The layout of slice s and those after it. All threads copy it, so that it is near them, if it fits.
  RINGREDUCE_DEVICE void find_layout(std::uint64_t s) {
    const FlatLayout* const layouts = reinterpret_cast<const FlatLayout*>(&program_ + 1);
    const int count = program_.layout_count;
    while (next_layout_ < count && layouts[next_layout_].first <= s) ++next_layout_;
    next_ = next_layout_ < count ? layouts[next_layout_].first : ~std::uint64_t{0};
    const FlatLayout& found = layouts[next_layout_ - 1];
    layout_ = found.bytes <= InterpreterShared::layout_bytes
                  ? shared_.layout
                  : reinterpret_cast<const char*>(&program_) + found.at;
  }

  RINGREDUCE_DEVICE void copy_layout(std::size_t thread, std::size_t threads) const {
    const FlatLayout& found = reinterpret_cast<const FlatLayout*>(&program_ + 1)[next_layout_ - 1];
    const char* const from = reinterpret_cast<const char*>(&program_) + found.at;
    if (thread == threads - 1) shared_.head = found;
    if (layout_ != shared_.layout) return;
    for (std::size_t i = sizeof(Words) * thread; i < found.bytes; i += sizeof(Words) * threads) {
      store_aligned(shared_.layout + i, load_aligned<Words>(from + i));
    }
  }

  template <class T>
  RINGREDUCE_DEVICE const T* part(std::uint32_t offset) const {
    return reinterpret_cast<const T*>(layout_ + offset);
  }

  // False: given up.
  RINGREDUCE_DEVICE bool run_batch(const FlatBatch& batch) {
    const bool talks = batch.messages_begin != batch.messages_end || batch.sources_begin != batch.sources_end;
    if (talks && !prepare(batch)) return false;
    if (errand_.scales && batch.combines) {
      move_all(batch, [&](const FlatMove& move, MoveSpans& spans) { scale_own(move, spans); });
    }
    move_all(batch, [&](const FlatMove& move, MoveSpans& spans) { describe(move, spans); });
    if (talks) tell(batch);
    return true;
  }

  // --- messages ------------------------------------------------------------------------------------------

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

  // --- moves ---------------------------------------------------------------------------------------------

  // A thread for each of a few moves calls describe(move, spans), and then all threads run the spans, which
  // are in shared memory because threads would keep their own copies in GPU memory.
  template <class Describe>
  RINGREDUCE_DEVICE void move_all(const FlatBatch& batch, Describe describe) {
    constexpr int most = InterpreterShared::most_moves;
    for (int first = batch.moves_begin; first < batch.moves_end; first += most) {
      const int count = batch.moves_end - first < most ? batch.moves_end - first : most;
      block_.all([&](std::size_t thread, std::size_t threads) {
        for (int m = static_cast<int>(thread); m < count; m += static_cast<int>(threads)) {
          const FlatMove& move = part<FlatMove>(shared_.head.moves)[first + m];
          begin_spans(move, shared_.moves[m]);
          describe(move, shared_.moves[m]);
        }
      });
      run_spans(count, batch.longest);
    }
  }

  RINGREDUCE_DEVICE void run_spans(int count, std::uint64_t longest) {
    if constexpr (coded) {
      block_.warps([&](std::size_t warp, std::size_t warps) {
        divide(count, longest / (4 * encoded_block), warp, warps,
               [&](const MoveSpans& spans, auto w, auto all) {
                 if (spans.combines)
                   return (spans.converts ? pass_.convert : pass_.coded)(spans.coded, w, all);
                 on_lanes([&](int lane) {
                   pass_bytes(spans.coded.spans, w * warp_lanes + static_cast<std::size_t>(lane),
                              all * warp_lanes);
                 });
               });
      });
    } else {
      block_.all([&](std::size_t thread, std::size_t threads) {
        divide(
            count, longest / bytes_at_once, thread, threads, [&](const MoveSpans& spans, auto t, auto all) {
              spans.combines ? pass_.run(spans.coded.spans, t, all) : pass_bytes(spans.coded.spans, t, all);
            });
      });
    }
  }

  // Long moves follow each other, each by all threads (or warps). Short ones run side by side, because the
  // time until the first bytes come does not depend on their number. `each`: how many threads the longest
  // keeps busy.
  template <class Body>
  RINGREDUCE_DEVICE void divide(int count, std::uint64_t each, std::size_t thread, std::size_t threads,
                                Body body) const {
    const std::size_t part = threads / static_cast<std::size_t>(count);
    const bool side_by_side = each < part;
    const int first = side_by_side ? static_cast<int>(thread / part) : 0;
    const int end = side_by_side && first + 1 < count ? first + 1 : count;
    RINGREDUCE_NO_UNROLL
    for (int m = first; m < end; ++m) {
      body(shared_.moves[m], side_by_side ? thread % part : thread, side_by_side ? part : threads);
    }
  }

  RINGREDUCE_DEVICE void describe(const FlatMove& move, MoveSpans& spans) {
    const FlatStep& step = part<FlatStep>(shared_.head.steps)[move.step];
    char* const home = place(move.to, move.target);
    const char* const from = place(move.from, move.source);
    char* const message = step.message < 0 ? nullptr : staged_by(move, step);
    switch (step.kind) {
      case FlatStep::Kind::send:
        copies(from, move, coded, spans);
        add_message(message, spans);
        if (coded && move.quantize) add_destination(home, spans);
        break;
      case FlatStep::Kind::combine:
      case FlatStep::Kind::receive:
        arrives(move, step, spans);
        if (!message || move.keep) add_destination(home, spans);
        if (message) add_message(message, spans);
        break;
      case FlatStep::Kind::local_combine:
        add_source(place(move.own_in, move.own), spans);
        add_source(from, spans);
        add_destination(home, spans);
        combines(move, spans);
        break;
      default:
        if (home == from && !(errand_.scales && move.from == 0) && !(coded && move.quantize)) break;
        copies(from, move, coded && (move.quantize || converts(move, spans)), spans);
        add_destination(home, spans);
    }
  }

  RINGREDUCE_DEVICE char* staged_by(const FlatMove& move, const FlatStep& step) const {
    return shared_.staged[step.message] + move.in_message;
  }

  // The sources of a combination or a receive.
  RINGREDUCE_DEVICE void arrives(const FlatMove& move, const FlatStep& step, MoveSpans& spans) {
    const bool is_combination = step.kind == FlatStep::Kind::combine;
    const bool is_scaled = errand_.scales && is_combination && move.from == 0;
    const std::int32_t* const sources = part<std::int32_t>(shared_.head.sources);
    for (int i = step.sources_begin; i < step.sources_end; ++i) {
      if (sources[i] < 0) {
        add_source(is_scaled ? place(move.to, move.target) : place(move.from, move.source), spans);
      } else {
        add_arrived(shared_.arrived[i % most_sources] + move.in_message, spans);
      }
    }
    is_combination ? combines(move, spans) : counts(move.bytes, coded, Scale{1, 1}, spans);
  }

  // On the way to its place, where it is then combined with what arrives.
  RINGREDUCE_DEVICE void scale_own(const FlatMove& move, MoveSpans& spans) {
    const FlatStep& step = part<FlatStep>(shared_.head.steps)[move.step];
    if (step.kind != FlatStep::Kind::combine || move.from != 0) return;
    copies(place(0, move.source), move, false, spans);
    add_destination(place(move.to, move.target), spans);
    spans.coded.quantize = false;
  }

  // Between 16-bit arrays and float32.
  RINGREDUCE_DEVICE bool converts(const FlatMove& move, MoveSpans& spans) const {
    if (errand_.arrays == 0 || (move.from != 0 && move.to != 1)) return false;
    spans.converts = true;
    (move.from == 0 ? spans.coded.encoded_sources : spans.coded.encoded_destinations) = 1;
    return true;
  }

  RINGREDUCE_DEVICE void begin_spans(const FlatMove& move, MoveSpans& spans) const {
    spans.coded.spans.source_count = spans.coded.spans.destination_count = 0;
    counts(0, false, Scale{1, 1}, spans);
    if constexpr (coded) {
      spans.converts = false;
      spans.coded.op = static_cast<Op>(errand_.op);
      spans.coded.encoded_sources = spans.coded.encoded_destinations = 0;
      spans.coded.quantize = move.quantize;
    }
  }

  RINGREDUCE_DEVICE static void add_source(const char* from, MoveSpans& spans) {
    spans.coded.spans.sources[spans.coded.spans.source_count++] = from;
  }
  RINGREDUCE_DEVICE static void add_destination(char* to, MoveSpans& spans) {
    spans.coded.spans.destinations[spans.coded.spans.destination_count++] = to;
  }
  // Of a message.
  RINGREDUCE_DEVICE static void add_arrived(const char* from, MoveSpans& spans) {
    if (coded) spans.coded.encoded_sources |= 1u << spans.coded.spans.source_count;
    add_source(from, spans);
  }
  RINGREDUCE_DEVICE static void add_message(char* to, MoveSpans& spans) {
    if (coded) spans.coded.encoded_destinations |= 1u << spans.coded.spans.destination_count;
    add_destination(to, spans);
  }
  RINGREDUCE_DEVICE void counts(std::uint64_t bytes, bool combines, const Scale& scale,
                                MoveSpans& spans) const {
    spans.combines = combines;
    spans.coded.spans.count = combines ? bytes / pass_.element_bytes : bytes;
    spans.coded.spans.scale = scale;
  }
  RINGREDUCE_DEVICE void combines(const FlatMove& move, MoveSpans& spans) const {
    counts(move.bytes, true, move.last ? errand_.last : Scale{1, 1}, spans);
  }
  // Copies values, those of the input times a factor if the call has one. `computes`: not only bytes.
  RINGREDUCE_DEVICE void copies(const char* from, const FlatMove& move, bool computes,
                                MoveSpans& spans) const {
    const bool scales = errand_.scales && move.from == 0;
    add_source(from, spans);
    counts(move.bytes, scales || computes, scales ? errand_.own : Scale{1, 1}, spans);
  }

  // An address in this slice.
  RINGREDUCE_DEVICE char* place(std::uint8_t memory, std::uint64_t offset) const {
    if (memory > 1) return shared_.temp + offset;
    return (memory == 0 ? const_cast<char*>(errand_.input) : errand_.output) + shift_ + offset;
  }

  static constexpr int peer_bits = 5;
  static constexpr std::uint64_t bytes_at_once = 128;  // of a thread
  static_assert(1 << peer_bits == most_ranks);

  InterpreterShared& shared_;
  const FlatProgram& program_;
  const char* layout_ = nullptr;  // of this slice
  int next_layout_ = 0;
  std::uint64_t next_ = 0;   // its first slice
  std::uint64_t shift_ = 0;  // of this slice: bytes
};

using Interpreter = InterpreterOf<false>;
using CodedInterpreter = InterpreterOf<true>;

}  // namespace ringreduce::device

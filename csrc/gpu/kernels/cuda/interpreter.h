// Walks a program, in one block of one rank's kernel. Each slice belongs to a block, the same on all ranks,
// and blocks with the same number on different ranks exchange messages. Several blocks keep several slices in
// flight; a block runs one step after the other.
//
// All ranks' blocks must run at the same time, because they wait for each other. A schedule that is free of
// deadlock with unbuffered sends is then free of it here, because the sends of a round do not wait for each
// other's slots. No wait lasts forever: one that sees the abort flag ends, and its block with it. The memory
// of the messages is unusable after that.
#pragma once

#include "gpu/kernels/cuda/rank_block.h"

namespace ringreduce::device {

// Data that the threads of a block share.
struct InterpreterShared {
  std::uint64_t sent[most_ranks], received[most_ranks];  // messages, by peer
  // The arena is a ring. Messages of this call lie in it one after the other, starting with the oldest that
  // may still be read. Indexed by number modulo most_slots.
  std::uint64_t begins[most_slots];
  std::uint64_t holds[most_slots][most_ranks];  // by peer: the number of the message to it, or 0
  std::int32_t oldest, posted;
  std::uint64_t head;               // where the arena is free once the oldest are read
  char* staged;                     // where a message is being written
  const char* arrived[most_ranks];  // by source: where it is read
  CodedSpans coded;                 // the spans of one move
  bool combines;                    // the spans; otherwise they are bytes
  bool converts;                    // between arrays and float32
  FlatLayout layout;                // of this slice
  std::int32_t layout_number;
  std::uint64_t shift;  // bytes
};

// `coded`: messages are encoded, and all spans are of float32.
template <bool coded>
class InterpreterOf : RankBlock {
 public:
  RINGREDUCE_DEVICE InterpreterOf(Block& block, InterpreterShared& shared, const Errand& errand,
                                  const Pass& pass)
      : RankBlock(block, errand, pass), shared_(shared), program_(*errand.program) {}

  RINGREDUCE_DEVICE void run() {
    going_on_ = block_.leader([&] { return begin(); });
    const std::uint64_t first = block_.index(), step = errand_.boxes.arenas();
    for (std::uint64_t s = first; s < program_.slices && has_arena() && going_on_; s += step) {
      slice(s);
      if (s == first) block_.alone([&] { tell_begun(); });
    }
    if (going_on_) block_.leader([&] { return end(); });
  }

 private:
  // --- what the leader does; false: given up, which the whole block is told ------------------------------

  RINGREDUCE_DEVICE bool wait_for_readers(int peer, std::uint64_t number) {
    return wait_until([&] { return load_relaxed(box_.read_by(peer)) >= number; });
  }

  RINGREDUCE_DEVICE bool begin() {
    if (errand_.duty != Duty::direct && !begin_call()) return false;
    shared_.oldest = shared_.posted = shared_.layout_number = 0;
    shared_.head = 0;
    for (int peer = 0; peer < program_.world; ++peer) {
      shared_.sent[peer] = *box_.sent_to(peer);
      shared_.received[peer] = *box_.received_from(peer);
    }
    return true;
  }

  // After its kernel has ended, no rank reads or writes this rank's boxes.
  RINGREDUCE_DEVICE bool end() {
    for (int peer = 0; peer < program_.world; ++peer) {
      if (!wait_for_readers(peer, shared_.sent[peer])) return false;
      *box_.sent_to(peer) = shared_.sent[peer];
      *box_.received_from(peer) = shared_.received[peer];
    }
    return acquired() && end_call();
  }

  RINGREDUCE_DEVICE bool find_layout(std::uint64_t s) {
    std::int32_t& number = shared_.layout_number;
    while (number + 1 < program_.layout_count && layouts()[number + 1].first <= s) ++number;
    shared_.layout = layouts()[number];
    shared_.shift = (s - shared_.layout.first) * program_.shift;
    return true;
  }

  RINGREDUCE_DEVICE bool wait_for_the_oldest() {
    const int slot = shared_.oldest++ % most_slots;
    for (int peer = 0; peer < program_.world; ++peer) {
      if (!wait_for_readers(peer, shared_.holds[slot][peer])) return false;
    }
    return true;
  }

  // Finds space that no rank reads any more. It can only wait for messages of rounds before the last one: the
  // arena holds those of two rounds, wherever it begins (gpu/kernels/flatten.cpp).
  RINGREDUCE_DEVICE bool take_room(const FlatStep& send) {
    const std::uint64_t bytes = Boxes::in_lines(send.bytes);
    const auto begin_of_oldest = [&] { return shared_.begins[shared_.oldest % most_slots]; };
    const auto any = [&] { return shared_.oldest < shared_.posted; };
    if (shared_.head + bytes > errand_.boxes.arena_bytes) {
      while (any() && begin_of_oldest() >= shared_.head) {
        if (!wait_for_the_oldest()) return false;
      }
      shared_.head = 0;
    }
    while (any() && (shared_.posted - shared_.oldest == most_slots ||
                     (begin_of_oldest() >= shared_.head && begin_of_oldest() < shared_.head + bytes))) {
      if (!wait_for_the_oldest()) return false;
    }
    shared_.staged = box_.arena() + shared_.head;
    return true;
  }

  // Posts the staged message to the peers of a send, after a release fence.
  RINGREDUCE_DEVICE bool post(const FlatStep& send) {
    const int slot = shared_.posted++ % most_slots;
    shared_.begins[slot] = shared_.head;
    for (int peer = 0; peer < program_.world; ++peer) shared_.holds[slot][peer] = 0;
    for (int p = send.peers_begin; p < send.peers_end; ++p) {
      const int peer = peers()[p];
      const std::uint64_t number = ++shared_.sent[peer];
      shared_.holds[slot][peer] = number;
      store_relaxed(box_of(peer).posted(errand_.rank, number),
                    posting(number, errand_.contract, shared_.head));
    }
    shared_.head += Boxes::in_lines(send.bytes);
    return true;
  }

  RINGREDUCE_DEVICE bool wait_for_messages(const FlatStep& step) {
    for (int p = step.peers_begin; p < step.peers_end; ++p) {
      const int peer = peers()[p];
      if (peer < 0) continue;
      const std::uint64_t number = shared_.received[peer] + 1;
      std::uint64_t word = 0;
      const auto is_here = [&] {
        word = load_relaxed(box_.posted(peer, number));
        return is_posting_of(word, number);
      };
      if (!wait_until(is_here)) return false;
      if (!is_under(word, errand_.contract)) return differs(peer);
      shared_.arrived[p - step.peers_begin] = box_of(peer).arena() + offset_in(word);
    }
    return true;
  }

  // After a release fence, so that peers do not overwrite what is still being read.
  RINGREDUCE_DEVICE bool release(const FlatStep& step) {
    for (int p = step.peers_begin; p < step.peers_end; ++p) {
      const int peer = peers()[p];
      if (peer >= 0) store_relaxed(box_of(peer).read_by(errand_.rank), ++shared_.received[peer]);
    }
    return true;
  }

  // --- what all threads do -------------------------------------------------------------------------------

  RINGREDUCE_DEVICE void slice(std::uint64_t s) {
    block_.meet();  // others may still look at the last slice's layout
    block_.leader([&] { return find_layout(s); });
    const FlatLayout& layout = shared_.layout;
    for (int i = layout.steps_begin; i < layout.steps_end && going_on_; ++i) {
      const FlatStep& step = steps()[i];
      if (step.nothing) continue;
      switch (step.kind) {
        case FlatStep::Kind::send:
          send(step);
          break;
        case FlatStep::Kind::combine:
        case FlatStep::Kind::receive:
          receive(step, step.carried < 0 ? nullptr : &steps()[layout.steps_begin + step.carried]);
          break;
        default:
          local(step);
      }
    }
  }

  RINGREDUCE_DEVICE void send(const FlatStep& step) {
    going_on_ = block_.leader([&] {
      const std::int32_t oldest = shared_.oldest;  // a different one after the wait
      return take_room(step) && (shared_.oldest == oldest || acquired());
    });
    if (!going_on_) return;
    each_move(step, [&](const FlatMove& move, std::uint64_t done) {
      copies(place(move.from, move.source), move, coded);
      add_message(shared_.staged + done);
      if (coded && move.quantize) add_destination(place(move.to, move.target));
    });
    block_.leader([&] { return released() && post(step); });
  }

  // `carried`: the send of the result, or null.
  RINGREDUCE_DEVICE void receive(const FlatStep& step, const FlatStep* carried) {
    going_on_ = block_.leader(
        [&] { return wait_for_messages(step) && (!carried || take_room(*carried)) && acquired(); });
    if (!going_on_) return;
    const bool scales = errand_.scales && step.kind == FlatStep::Kind::combine;
    if (scales) scale_own(step);
    each_move(step, [&](const FlatMove& move, std::uint64_t done) {
      char* const home = place(move.to, move.target);
      const char* own = scales && move.from == 0 ? home : place(move.from, move.source);
      for (int p = step.peers_begin; p < step.peers_end; ++p) {
        peers()[p] < 0 ? add_source(own) : add_arrived(shared_.arrived[p - step.peers_begin] + done);
      }
      if (!carried || move.keep) add_destination(home);
      if (carried) add_message(shared_.staged + done);
      step.kind == FlatStep::Kind::combine ? combines(move) : counts(move.bytes, coded, Scale{1, 1});
    });
    block_.leader([&] { return released() && release(step) && (!carried || post(*carried)); });
  }

  // On the way to its place, where it is then combined with what arrives.
  RINGREDUCE_DEVICE void scale_own(const FlatStep& step) {
    each_move(step, [&](const FlatMove& move, std::uint64_t) {
      if (move.from != 0) return;
      copies(place(0, move.source), move, false);
      add_destination(place(move.to, move.target));
      shared_.coded.quantize = false;
    });
  }

  RINGREDUCE_DEVICE void local(const FlatStep& step) {
    each_move(step, [&](const FlatMove& move, std::uint64_t) {
      const char* from = place(move.from, move.source);
      char* to = place(move.to, move.target);
      if (step.kind == FlatStep::Kind::local_combine) {
        add_source(place(move.own_in, move.own));
        add_source(from);
        add_destination(to);
        combines(move);
      } else if (to != from || (errand_.scales && move.from == 0) || (coded && move.quantize)) {
        copies(from, move, coded && (move.quantize || converts(move)));
        add_destination(to);
      }
    });
  }

  // Between 16-bit arrays and float32.
  RINGREDUCE_DEVICE bool converts(const FlatMove& move) {
    if (errand_.arrays == 0 || (move.from != 0 && move.to != 1)) return false;
    shared_.converts = true;
    (move.from == 0 ? shared_.coded.encoded_sources : shared_.coded.encoded_destinations) = 1;
    return true;
  }

  // The leader calls describe(move, bytes of the moves before it), and all threads run the result. Spans are
  // in shared memory, because threads would keep their own copies in GPU memory.
  template <class Describe>
  RINGREDUCE_DEVICE void each_move(const FlatStep& step, Describe describe) {
    std::uint64_t done = 0;
    for (int m = step.moves_begin; m < step.moves_end; ++m) {
      const FlatMove& move = moves()[m];
      block_.leader([&] {
        begin_spans(move);
        describe(move, done);
        return true;
      });
      run_spans();
      done += move.message_bytes;
    }
  }

  RINGREDUCE_DEVICE void begin_spans(const FlatMove& move) {
    spans().source_count = spans().destination_count = 0;
    counts(0, false, Scale{1, 1});
    if constexpr (coded) {
      shared_.converts = false;
      shared_.coded.op = static_cast<Op>(errand_.op);
      shared_.coded.encoded_sources = shared_.coded.encoded_destinations = 0;
      shared_.coded.quantize = move.quantize;
    }
  }

  RINGREDUCE_DEVICE void run_spans() {
    if constexpr (coded) {
      if (shared_.combines) {
        return block_.warps([&](std::size_t warp, std::size_t warps) {
          (shared_.converts ? pass_.convert : pass_.coded)(shared_.coded, warp, warps);
        });
      }
    }
    block_.all([&](std::size_t thread, std::size_t threads) {
      !coded&& shared_.combines ? pass_.run(spans(), thread, threads) : pass_bytes(spans(), thread, threads);
    });
  }

  RINGREDUCE_DEVICE Spans& spans() const { return shared_.coded.spans; }
  RINGREDUCE_DEVICE void add_source(const char* from) { spans().sources[spans().source_count++] = from; }
  RINGREDUCE_DEVICE void add_destination(char* to) { spans().destinations[spans().destination_count++] = to; }
  // Of a message.
  RINGREDUCE_DEVICE void add_arrived(const char* from) {
    if (coded) shared_.coded.encoded_sources |= 1u << spans().source_count;
    add_source(from);
  }
  RINGREDUCE_DEVICE void add_message(char* to) {
    if (coded) shared_.coded.encoded_destinations |= 1u << spans().destination_count;
    add_destination(to);
  }
  RINGREDUCE_DEVICE void counts(std::uint64_t bytes, bool combines, const Scale& scale) {
    shared_.combines = combines;
    spans().count = combines ? bytes / pass_.element_bytes : bytes;
    spans().scale = scale;
  }
  RINGREDUCE_DEVICE void combines(const FlatMove& move) {
    counts(move.bytes, true, move.last ? errand_.last : Scale{1, 1});
  }
  // Copies values, those of the input times a factor if the call has one. `computes`: not only bytes.
  RINGREDUCE_DEVICE void copies(const char* from, const FlatMove& move, bool computes) {
    const bool scales = errand_.scales && move.from == 0;
    add_source(from);
    counts(move.bytes, scales || computes, scales ? errand_.own : Scale{1, 1});
  }

  // An address in this slice.
  RINGREDUCE_DEVICE char* place(std::uint8_t memory, std::uint64_t offset) const {
    if (memory > 1)
      return errand_.temp + program_.temp_bytes * static_cast<std::uint64_t>(block_.index()) + offset;
    return (memory == 0 ? const_cast<char*>(errand_.input) : errand_.output) + shared_.shift + offset;
  }

  template <class T>
  RINGREDUCE_DEVICE const T* at(std::uint64_t offset) const {
    return reinterpret_cast<const T*>(reinterpret_cast<const char*>(&program_) + offset);
  }
  RINGREDUCE_DEVICE const FlatLayout* layouts() const { return at<FlatLayout>(program_.layouts); }
  RINGREDUCE_DEVICE const FlatStep* steps() const { return at<FlatStep>(program_.steps); }
  RINGREDUCE_DEVICE const FlatMove* moves() const { return at<FlatMove>(program_.moves); }
  RINGREDUCE_DEVICE const std::int32_t* peers() const { return at<std::int32_t>(program_.peers); }

  InterpreterShared& shared_;
  const FlatProgram& program_;
  bool going_on_ = true;
};

using Interpreter = InterpreterOf<false>;
using CodedInterpreter = InterpreterOf<true>;

}  // namespace ringreduce::device

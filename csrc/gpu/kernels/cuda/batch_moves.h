// The moves of a batch of the interpreter's steps, as spans that all threads of the block run.
#pragma once

#include "gpu/kernels/cuda/batch_messages.h"

namespace ringreduce::device {

// `coded`: messages are encoded, and all spans are of float32.
template <bool coded>
class BatchMoves : protected BatchMessages {
 protected:
  using BatchMessages::BatchMessages;

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

  static constexpr std::uint64_t bytes_at_once = 128;  // of a thread

  std::uint64_t shift_ = 0;  // of this slice: bytes
};

}  // namespace ringreduce::device

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

#include "gpu/kernels/cuda/batch_moves.h"

namespace ringreduce::device {

template <bool coded>
class InterpreterOf : BatchMoves<coded> {
  using Base = BatchMoves<coded>;
  using Base::acquired, Base::begin_call, Base::block_, Base::box_, Base::calls_, Base::end_call,
      Base::errand_, Base::has_arena, Base::layout_, Base::move_all, Base::prepare, Base::shared_,
      Base::shift_, Base::tell, Base::tell_begun, Base::wait_until, Base::describe, Base::scale_own;

 public:
  RINGREDUCE_DEVICE InterpreterOf(Block& block, InterpreterShared& shared, const Errand& errand,
                                  const Pass& pass)
      : Base(block, shared, errand, pass), program_(*errand.program) {}

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
        if (!run_batch(Base::template part<FlatBatch>(0)[i])) return;
      }
      if (s == first) block_.alone([&] { tell_begun(); });
    }
    end();
  }

 private:
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

  const FlatProgram& program_;
  int next_layout_ = 0;
  std::uint64_t next_ = 0;  // its first slice
};

using Interpreter = InterpreterOf<false>;
using CodedInterpreter = InterpreterOf<true>;

}  // namespace ringreduce::device

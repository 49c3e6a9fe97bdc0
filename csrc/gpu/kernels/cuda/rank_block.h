// One block of a rank's kernel: the common part of all kernels.
#pragma once

#include "gpu/kernels/cuda/mailboxes.h"
#include "gpu/kernels/cuda/passes.h"

namespace ringreduce::device {

// Not 0: given up.
RINGREDUCE_DEVICE std::uint64_t abort_flag(const Report& report, const Block& block) {
  return load_relaxed(&report.abort[block.index() % most_blocks].flag);
}

// How one thread waits for other ranks, but never forever: after some looks it tells the host that it waits,
// and looks whether it is given up, which is what false says. Only one lane of a warp does, and seldom: host
// memory is far. An acquire fence must follow the last wait, before the memory that the words describe is
// touched.
template <class Condition, class Tell>
RINGREDUCE_DEVICE bool wait_until(const Report& report, const Block& block, Condition holds, Tell tell) {
  constexpr unsigned looks = 1024;
  for (unsigned looked = 1; !holds(); ++looked) {
    if (looked % looks != 0) continue;
    if (looked == looks) tell();
    if (is_first_of_lanes_here() && abort_flag(report, block) != 0) return false;
    wait_a_little();
  }
  return true;
}

class RankBlock {
 protected:
  RINGREDUCE_DEVICE RankBlock(Block& block, const Errand& errand, const Pass& pass)
      : block_(block), errand_(errand), pass_(pass), box_(box_of(errand.rank)), calls_(*box_.calls()) {}

  RINGREDUCE_DEVICE Box box_of(int peer) const {
    return Box(errand_.boxes, errand_.memories[peer], block_.index());
  }

  // Whether this block has messages. Others also begin and end all calls, so that counts of calls
  // agree.
  RINGREDUCE_DEVICE bool has_arena() const { return block_.index() < errand_.boxes.arenas(); }

  // In the block's leader.
  template <class Condition>
  RINGREDUCE_DEVICE bool wait_until(Condition holds) const {
    return device::wait_until(*errand_.report, block_, holds, [&] { tell_begun(); });
  }

  RINGREDUCE_DEVICE static bool released() {
    release_fence();
    return true;
  }
  RINGREDUCE_DEVICE static bool acquired() {
    acquire_fence();
    return true;
  }

  // Reports that a peer has made another call. The host gives up for all ranks.
  RINGREDUCE_DEVICE bool differs(int peer) const {
    tell_host(&errand_.report->differs, static_cast<std::uint64_t>(peer) + 1);
    return false;
  }

  // False: an earlier call was given up, so counts differ from what peers expect, and the block makes no
  // further call; or another call uses the box now, such as a graph's replay on another stream.
  RINGREDUCE_DEVICE bool begin_call() {
    if (exchange(box_.is_in_call(), 1) == 0) {
      *box_.calls() = ++calls_;
      return true;
    }
    if (abort_flag(*errand_.report, block_) == 0) tell_host(&errand_.report->overlaps, 1);
    return false;
  }
  // Not before the peers have been told what they wait for: the fence that precedes that would wait for the
  // host. One block speaks for all, because they begin together.
  RINGREDUCE_DEVICE void tell_begun() const {
    if (block_.index() == 0) tell_host(&errand_.report->begun, calls_);
  }
  RINGREDUCE_DEVICE bool end_call() const {
    tell_begun();  // a call without messages has not yet
    *box_.is_in_call() = 0;
    tell_host(&errand_.report->done[block_.index()], calls_);
    return true;
  }

  Block& block_;
  const Errand& errand_;
  const Pass& pass_;
  const Box box_;
  std::uint64_t calls_;  // of this rank so far; in the leader only
};

}  // namespace ringreduce::device

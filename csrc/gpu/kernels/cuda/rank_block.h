// One block of a rank's kernel: the common part of all kernels.
#pragma once

#include "gpu/kernels/cuda/mailboxes.h"
#include "gpu/kernels/cuda/passes.h"

namespace ringreduce::device {

// How one thread waits for other ranks, but never forever: after some looks it tells the host that it waits,
// and looks whether it is given up, which is what false says. A fence must follow the last wait, before the
// memory that the words describe is touched.
template <class Condition, class Tell>
RINGREDUCE_DEVICE bool wait_until(const Report& report, Condition holds, Tell tell) {
  constexpr unsigned looks = 64;
  for (unsigned looked = 1; !holds(); ++looked) {
    if (looked % looks != 0) continue;
    if (looked == looks) tell();
    if (load_relaxed(&report.abort) != 0) return false;
    wait_a_little();
  }
  return true;
}

class RankBlock {
 protected:
  RINGREDUCE_DEVICE RankBlock(Block& block, const Errand& errand, const Pass& pass)
      : block_(block), errand_(errand), pass_(pass), box_(box_of(errand.rank)) {}

  RINGREDUCE_DEVICE Box box_of(int peer) const {
    return Box(errand_.boxes, errand_.memories[peer], block_.index());
  }

  // Whether this block has messages and tiles. Others also begin and end all calls, so that counts of calls
  // agree.
  RINGREDUCE_DEVICE bool has_arena() const { return block_.index() < errand_.boxes.arenas(); }

  // In the block's leader.
  template <class Condition>
  RINGREDUCE_DEVICE bool wait_until(Condition holds) const {
    return device::wait_until(*errand_.report, holds, [&] { tell_begun(); });
  }

  RINGREDUCE_DEVICE static bool fenced() {
    fence();
    return true;
  }

  // Reports that a peer has made another call. The host gives up for all ranks.
  RINGREDUCE_DEVICE bool differs(int peer) const {
    tell_host(&errand_.report->differs, static_cast<std::uint64_t>(peer) + 1);
    return false;
  }

  // False: an earlier call was given up, so counts differ from what peers expect, and the block makes no
  // further call; or another call uses the box now, such as a graph's replay on another stream.
  RINGREDUCE_DEVICE bool begin_call() const {
    if (exchange(box_.is_in_call(), 1) == 0) {
      ++*box_.calls();
      return true;
    }
    if (load_relaxed(&errand_.report->abort) == 0) tell_host(&errand_.report->overlaps, 1);
    return false;
  }
  // Not before the peers have been told what they wait for: the fence that precedes that would wait for the
  // host. One block speaks for all, because they begin together.
  RINGREDUCE_DEVICE void tell_begun() const {
    if (block_.index() == 0) tell_host(&errand_.report->begun, *box_.calls());
  }
  RINGREDUCE_DEVICE bool end_call() const {
    tell_begun();  // a call without messages has not yet
    *box_.is_in_call() = 0;
    tell_host(&errand_.report->done[block_.index()], *box_.calls());
    return true;
  }

  Block& block_;
  const Errand& errand_;
  const Pass& pass_;
  const Box box_;
};

}  // namespace ringreduce::device

// How one thread of a rank's block waits for other ranks: never for ever.
#pragma once

#include "engine/gpu/kernels/cuda/mailboxes.h"

namespace ringreduce::device {

// False: given up.
template <class Condition>
RINGREDUCE_DEVICE bool wait_until(Condition holds, const Report* report) {
  constexpr unsigned looks = 64;
  for (unsigned looked = 1; !holds(); ++looked) {
    if (looked % looks != 0) continue;
    if (load_acquire(&report->abort) != 0) return false;
    wait_a_little();
  }
  return true;
}

// Says that a peer has made another call. The host gives up for all ranks.
RINGREDUCE_DEVICE bool differs(Report* report, int peer) {
  store_release(&report->differs, static_cast<std::uint64_t>(peer) + 1);
  return false;
}

// A block's calls; for the host's clock, those that the first of a rank's blocks has begun and ended. False:
// an earlier one was given up, so that counts are not what peers expect, and the block makes no further call.
RINGREDUCE_DEVICE bool begin_call(const Box& box, Report* report, int block) {
  if (block == 0) store_relaxed(&report->begun, ++*box.calls());
  if (*box.is_in_call() != 0) return false;
  *box.is_in_call() = 1;
  return true;
}
RINGREDUCE_DEVICE void end_call(const Box& box, Report* report, int block) {
  *box.is_in_call() = 0;
  if (block == 0) store_relaxed(&report->done, *box.calls());
}

}  // namespace ringreduce::device

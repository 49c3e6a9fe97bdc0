// A thread's calls between ncclGroupStart and ncclGroupEnd. Those of one communicator run in order; then come
// its messages, all of them together, and then what waits for other ranks on the host. Those of several
// communicators run at the same time, because they may wait for each other.
#pragma once

#include <functional>

#include "fronts/nccl/calls.h"

namespace ringreduce::nccl_api {

enum class Phase { launches, messages, waits };

bool in_group();
nccl::Result start_group();
nccl::Result end_group();
// Ends it without running anything.
void drop_group();
// The group ends with this result, and runs nothing.
nccl::Result spoil_group(nccl::Result result);
void keep_for_group(Member& member, Phase phase, std::function<void()> step);
void keep_for_group(Member& member, const Posted& message);

// Runs now, or when the calling thread's group ends. check(member) always runs now, and throws if arguments
// are invalid; now(member) and later(member) throw other failures.
template <class Check, class Now, class Later>
nccl::Result run(nccl::Comm comm, Check check, Now now, Later later) noexcept {
  const Member* found = nullptr;
  try {
    Member& member = Member::of(comm);
    found = &member;
    check(member);
    in_group() ? later(member) : now(member);
    return nccl::success;
  } catch (...) {
    return spoil_group(failed(std::current_exception(), found ? found->name() : ""));
  }
}
template <class Check, class Step>
nccl::Result run(nccl::Comm comm, Phase phase, Check check, Step step) noexcept {
  return run(comm, check, step,
             [&](Member& member) { keep_for_group(member, phase, [&member, step] { step(member); }); });
}
template <class Step>
nccl::Result run(nccl::Comm comm, Phase phase, Step step) noexcept {
  return run(comm, phase, [](Member&) {}, step);
}

}  // namespace ringreduce::nccl_api

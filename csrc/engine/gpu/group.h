// What collectives of arrays in GPU memory need of the group that they belong to.
#pragma once

#include <functional>
#include <optional>

#include "engine/planning/call.h"
#include "engine/planning/plan.h"
#include "transport/interface/transport.h"

namespace ringreduce {

struct GpuGroup {
  int rank, world;
  bool reproducible;
  Clock::duration timeout;
  Transport& transport;
  Planner& planner;  // of who is in a step of run()

  // Throws Closed, or how the group has failed.
  std::function<void()> check_usable;
  // Whether it was closed, or has failed.
  std::function<bool()> is_over;
  // Signals, and what else is to go on while a thread waits.
  std::function<void()> poll;

  // Does these steps in this thread, or behind what is under way; returns when they are complete.
  std::function<void(Steps&)> run;
  // What this throws ends the group for all ranks, but for refusals.
  std::function<void(const std::function<void()>&)> guard;
  // This rank's next call, for itself and the others: its record. In a step of run().
  std::function<const Record&(const Plan&)> note;
  Exchange exchange;

  // Throws, with what all ranks did lately, that `what` has taken too long.
  std::function<void(const char* what)> time_out;
  // The number of the first call that two ranks made differently, and a rank that made it unlike this one.
  std::function<std::optional<std::uint64_t>()> first_disagreement;
  std::function<int(std::uint64_t)> rank_that_called_otherwise;
};

}  // namespace ringreduce

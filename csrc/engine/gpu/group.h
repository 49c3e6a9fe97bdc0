// What collectives of arrays in GPU memory need of the group that they belong to.
#pragma once

#include <functional>

#include "engine/diagnosis.h"
#include "engine/planning/call.h"
#include "engine/planning/plan.h"
#include "transport/interface/errors.h"
#include "transport/interface/transport.h"

namespace ringreduce {

struct GpuGroup {
  int rank, world;
  bool reproducible;
  Clock::duration timeout;
  Transport& transport;
  const Diagnosis& diagnosis;
  Planner& planner;  // of who is in a step of run()

  // Throws Closed, or how the group has failed.
  std::function<void()> check_usable;
  // Signals, and what else is to go on while a thread waits.
  std::function<void()> poll;

  // Does these steps in this thread, or behind what is under way; returns when they are complete.
  std::function<void(Steps&)> run;
  // What this throws ends the group for all ranks, but for refusals.
  std::function<void(const std::function<void()>&)> guard;
  // This rank's next call, for itself and the others: its record. In a step of run().
  std::function<const Record&(const Plan&)> note;
  Exchange exchange;

  bool is_over() const { return !transport.fate().is_open(); }

  // What a GPU or NCCL refuses half-way it has refused this rank only: the others are told, by guard().
  template <typename Step>
  void telling_others(Step step) const {
    try {
      step();
    } catch (const Error& error) {
      const bool is_told = dynamic_cast<const Failure*>(&error) ||
                           dynamic_cast<const InvalidArgument*>(&error) ||
                           dynamic_cast<const Closed*>(&error);
      if (is_told) throw;
      check_usable();  // aborted because of what has failed elsewhere
      throw Failure(Cause::peer_lost, rank, "rank " + std::to_string(rank) + ": " + error.what());
    }
  }
};

}  // namespace ringreduce

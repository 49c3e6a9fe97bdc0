// What all calls of a group have in common, whichever thread runs them: the transport, what plans and runs a
// collective, the messages, the record of this rank's calls, and how the group fails.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "engine/cpu/executor.h"
#include "engine/diagnosis.h"
#include "engine/messages/point_to_point.h"
#include "engine/planning/planner.h"
#include "transport/interface/log.h"
#include "transport/interface/transport.h"

namespace ringreduce {

struct Options {
  Clock::duration timeout = std::chrono::seconds(300);
  // An element of a reduction's result depends only on the ranks' values of that element: they are added in
  // rank order, whatever the buffer's size, the element's place, the transport. All ranks must agree.
  bool reproducible = reproducible_by_environment();
  // Called a few thousand times a second in threads that wait in a blocking collective, instead of the check
  // for interrupts: keeps something else of theirs going meanwhile. Must not throw.
  void (*poll)() = nullptr;
  // Used if all ranks told each other the same digest of them when they met.
  std::shared_ptr<const Tuned> tuned = tuned_rows();
  // What lines of the log call this rank; empty: "rank 3". Of a group made from another, "rank 3/1": rank 3
  // there is rank 1 here.
  std::string log_name;
};

class Calls {
 public:
  Calls(std::unique_ptr<Transport> transport, const Options& options);

  const Options options;
  const std::unique_ptr<Transport> transport;
  const int rank, world;
  const std::string log_name;
  const Diagnosis diagnosis;
  PointToPoint messages;
  // One collective at a time: who holds this may use what follows it, and begin().
  std::mutex collective;
  Planner planner;
  Executor executor;

  // Whether they are this process's, and not those of the one that it was forked from.
  bool ours() const;
  // Throws Closed, or how the group failed.
  void check_usable() const;
  bool is_over() const { return !transport->fate().is_open(); }
  // Signals, and what else is to go on while a thread waits.
  void poll() const;
  Clock::duration or_default(Clock::duration timeout) const {
    return timeout.count() > 0 ? timeout : options.timeout;
  }

  // This rank's next call, for itself and for the others: its record.
  const Record& note(const Plan& plan);
  // Makes the executor ready for it.
  void begin(const Call& call);
  // One that follows others, of the same steps: were it refused now, the other ranks would wait.
  void begin_later(const Call& call);
  void run_to_end(Clock::duration timeout) {
    executor.advance();
    if (!executor.done()) wait_to_end(or_default(timeout));
  }
  [[noreturn]] void time_out(Clock::duration timeout) const;
  // Called now and then in a wait: ends one that takes too long, says in the log whom a long one is for.
  void look_at(Clock::duration waited, Clock::duration timeout);

  void wait_for(const Request& request);
  [[noreturn]] void time_out(const Request& request) const;
  // Whom a transfer waits for, or -1 where that is this rank itself or not known.
  int peer_of(const Request& request) const;
  // Whether the messages that have been taken over are gone.
  bool flushed() const;
  // Nobody else sees to it that a message goes when its sender has gone to compute.
  void flush(const Transfer& send);

  // Runs `step`; whatever it throws that leaves the group in the middle of something ends it for all ranks.
  // `message`: what it does, if that is no collective.
  template <typename Step>
  void guarded(Step step, const Transfer* message = nullptr) {
    try {
      step();
    } catch (...) {
      end(message);
    }
  }
  // What is refused half-way by a GPU or by NCCL is refused on this rank only: in guarded(), so that the
  // others are told.
  template <typename Step>
  void telling_others(Step step) {
    try {
      step();
    } catch (const Error&) {
      blame_self();
    }
  }
  void say(log::Level level, const std::string& text) const { log::say(level, log_name, text); }
  // Throws what the group has ended with, which may be what a peer has found.
  [[noreturn]] void fail(const Failure& found);

 private:
  void wait_to_end(Clock::duration timeout);
  void say_who_is_late(int waiting_for, std::uint64_t number, Clock::duration waited,
                       const std::string& what) const;
  [[noreturn]] void end(const Transfer* message);
  [[noreturn]] void blame_self() const;
  std::string now_doing() const;

  const unsigned fork_epoch_;
  std::uint64_t sequence_ = 0;
  std::uint64_t history_ = 0;  // of all calls so far
  Record current_;
  struct {
    std::uint64_t call = 0;
    Clock::duration again_after{};
  } said_;  // of the long wait that is under way
  std::atomic<bool> failure_said_{false};
};

}  // namespace ringreduce

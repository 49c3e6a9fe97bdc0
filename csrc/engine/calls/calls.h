// The state that all calls of a group share, in any thread: the transport, the planner and the executor, the
// messages, the record of this rank's calls, and how the group fails.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "engine/accounting/account.h"
#include "engine/accounting/published_state.h"
#include "engine/calls/turn.h"
#include "engine/cpu/executor.h"
#include "engine/device/options.h"
#include "engine/endings/diagnosis.h"
#include "engine/messages/point_to_point.h"
#include "engine/planning/planner.h"
#include "transport/interface/log.h"
#include "transport/interface/transport.h"

namespace ringreduce {

struct Options {
  Clock::duration timeout = std::chrono::seconds(300);
  // An element of a reduction's result depends only on the ranks' values of that element. They are added in
  // rank order, whatever the buffer's size, the element's place or the transport. All ranks must agree.
  bool reproducible = reproducible_by_environment();
  // Called a few thousand times a second, instead of the check for interrupts, in threads that wait in a
  // blocking collective. Lets the caller make progress with something else. Must not throw.
  void (*poll)() = nullptr;
  // Used if all ranks reported the same digest of these rows when they met.
  std::shared_ptr<const Tuned> tuned = tuned_rows();
  // The name of this rank in the log; empty: "rank 3". In a group made from another it is "rank 3/1", if rank
  // 3 there is rank 1 here.
  std::string log_name;
  // The ranks' names in the job, if they are not their numbers here.
  std::vector<int> members;
  GpuOptions gpu;
};

class Calls {
 public:
  Calls(std::unique_ptr<Transport> transport, const Options& options);

  const Options options;
  const std::shared_ptr<Transport> transport;
  const int rank, world;
  const std::string log_name;
  const Diagnosis diagnosis;
  Account account;
  PublishedGroup published;
  PointToPoint messages;
  // Collectives run one at a time: the holder of this may use what follows it, and begin().
  Turn turn;
  Planner planner;
  Executor executor;

  // Whether these calls belong to this process, and not to the parent that it was forked from.
  bool ours() const;
  // Throws Closed, or the group's failure.
  void check_usable() const;
  bool is_over() const { return !transport->fate().is_open(); }
  // Waits for calls of other threads. Its exceptions leave the group usable: a timeout, what poll() throws,
  // and Misplaced if the call could never begin, because a signal handler runs it inside another call of this
  // thread. `what`: the call, for errors. `over_too`: even if the group has ended.
  std::unique_lock<Turn> take_turn(Turn& which, const char* what, Clock::duration timeout,
                                   bool over_too = false) {
    std::unique_lock held(which, std::try_to_lock);
    if (!held) [[unlikely]]
      wait_for_turn(held, what, or_default(timeout), over_too);
    return held;
  }
  void refuse_inside_another(const char* what) const { refuse_inside(turn, what); }
  // Handles signals, and everything else that must make progress while a thread waits.
  void poll() const;
  Clock::duration or_default(Clock::duration timeout) const {
    return timeout.count() > 0 ? timeout : options.timeout;
  }

  // Records this rank's next call, with arrays of so many bytes, for itself and for the others.
  const Record& note(const Plan& plan, std::size_t bytes, int bucket = -1);
  // The current call is over on this rank.
  void finish() {
    if (identity_.output) [[unlikely]]
      write_identity(identity_);
    published.ended(sequence_);
  }
  std::uint64_t number() const { return sequence_; }
  // Prepares the executor for the call.
  void begin(const Call& call);
  // The same for a call that follows others, with the same steps. It cannot be refused now, because the other
  // ranks would wait.
  void begin_later(const Call& call);
  // Whether a call takes little longer than messages between cores if the peers are there already. Where
  // ranks share cores, or messages need the transport's help, looking for them is useless.
  bool is_brief(const Call& call) const;
  // Whether the call ended while a peer's message could cross to this core.
  bool run_for_a_moment() {
    for (int looks = 0; looks < moment && !executor.done(); ++looks) executor.advance();
    return executor.done();
  }
  void run_to_end(Clock::duration timeout) {
    executor.advance();
    if (!executor.done()) wait_to_end(or_default(timeout));
  }
  [[noreturn]] void time_out(Clock::duration timeout) const;
  // Called now and then in a wait. Shows which rank it is for, logs that if it is long, and ends it if it
  // takes too long.
  void look_at(Clock::duration waited, Clock::duration timeout);
  // The same for a transfer.
  void look_at(const Request& request, Clock::duration waited);

  void wait_for(const Request& request);
  [[noreturn]] void time_out(const Request& request) const;
  // The rank that a transfer waits for, or -1 if that is this rank itself or unknown.
  int peer_of(const Request& request) const;
  // Whether all accepted messages have been sent.
  bool flushed() const;
  // Waits until a send's message is gone: nothing else would send it once the sender computes.
  void flush(const Transfer& send);

  // Runs `step`. An exception that leaves the group in the middle of an operation ends the group for all
  // ranks. `message`: the transfer, if it is not a collective.
  template <typename Step>
  void guarded(Step step, const Transfer* message = nullptr) {
    try {
      step();
    } catch (...) {
      end(message);
    }
  }
  // A GPU or NCCL refuses a call half-way on this rank only. Called inside guarded(), so that the others
  // learn of it.
  template <typename Step>
  void telling_others(Step step) {
    try {
      step();
    } catch (const Error&) {
      blame_self();
    }
  }
  void say(log::Level level, const std::string& text) const { log::say(level, log_name, text); }
  // Throws the group's failure, which may be one that a peer has found.
  [[noreturn]] void fail(const Failure& found);

 private:
  static constexpr int moment = 100;             // looks for messages
  static constexpr std::size_t brief = 4 << 10;  // bytes
  void wait_to_end(Clock::duration timeout);
  void refuse_inside(const Turn& which, const char* what) const;
  void wait_for_turn(std::unique_lock<Turn>& held, const char* what, Clock::duration timeout, bool over_too);
  void say_who_is_late(int waiting_for, std::uint64_t number, Clock::duration waited,
                       const std::string& what) const;
  [[noreturn]] void end(const Transfer* message);
  [[noreturn]] void tell_others(const Transfer* message);
  [[noreturn]] void blame_self() const;
  [[noreturn]] void fail_with_last_words(const Failure& failure);
  std::string now_doing() const;

  const unsigned fork_epoch_;
  // The current call, if it is an exscan that leaves the op's identity on this rank.
  Call identity_;
  std::uint64_t sequence_ = 0;
  std::uint64_t history_ = 0;  // over all calls so far
  Record* current_;            // shown to others
  struct {
    std::uint64_t call = 0;
    Clock::duration again_after{};
  } said_;  // for the current long wait
  std::atomic<bool> failure_said_{false};
};

}  // namespace ringreduce

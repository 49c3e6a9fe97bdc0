#include "engine/calls/calls.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <sstream>

#include "engine/calls/waiting.h"
#include "engine/endings/contract.h"
#include "engine/planning/description.h"

namespace ringreduce {
namespace {

// Whether to log that a wait has lasted so long: after a second, and each time it has doubled since.
bool is_worth_a_word(Clock::duration waited, Clock::duration& again_after) {
  if (waited < std::max<Clock::duration>(std::chrono::seconds(1), again_after)) return false;
  again_after = 2 * waited;
  return log::says(log::Level::debug);
}

std::atomic<unsigned> forks{0};  // forks between the first process and this one

unsigned watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { ++forks; }); });
  return forks;
}

// Limits the timeout to what can be added to a time.
Options bounded(Options options) {
  options.timeout = std::min<Clock::duration>(options.timeout, std::chrono::hours(24 * 365 * 30));
  return options;
}

// Adds the lengths where the calls agree, but not on what one rank sends to another.
std::string lengths(const ContractBroken& broken) {
  if (!broken.same_call) return "";
  return " by a message of " + std::to_string(broken.bytes) + " bytes, where " +
         std::to_string(broken.expected_bytes) + " were expected";
}

// All ranks must choose alike.
std::shared_ptr<const Tuned> agreed(const std::shared_ptr<const Tuned>& own, const MeetingReports& reports) {
  const auto differs = [&](std::uint64_t digest) { return digest != reports.agreement.front(); };
  if (std::none_of(reports.agreement.begin(), reports.agreement.end(), differs)) return own;
  return std::make_shared<Tuned>(
      Tuned{{}, 0, "; the tables of ringreduce tune are ignored because they differ between ranks", ""});
}

}  // namespace

Calls::Calls(std::unique_ptr<Transport> transport_of_group, const Options& given)
    : options(bounded(given)),
      transport(std::move(transport_of_group)),
      rank(transport->rank),
      world(transport->world),
      log_name(given.log_name.empty() ? "rank " + std::to_string(rank) : given.log_name),
      diagnosis(*transport),
      account(world),
      published({rank, world, transport->reports.group, transport->facts().name, given.members,
                 transport->reports.machine}),
      messages(*transport),
      planner(
          rank, world,
          {tuning_of(transport->facts().name), transport->facts().capacity, transport->facts().oversubscribed,
           transport->facts().shared_cores, transport->facts().longest_eager},
          options.reproducible, transport->facts().hosts, agreed(options.tuned, transport->reports)),
      executor(*transport),
      fork_epoch_(watch_forks()),
      current_(&published.next(0)) {
  check_instruction_set();  // throws here, before any call, if RINGREDUCE_ISA names one that the machine
                            // lacks
}

bool Calls::ours() const {
  return fork_epoch_ == forks;
}

void Calls::check_usable() const {
  if (!ours()) {
    throw Closed(
        "this communicator belongs to the process that forked this one; create a new communicator here");
  }
  transport->fate().check();
}

void Calls::poll() const {
  options.poll ? options.poll() : check_interrupt();
}

// --- whose turn it is --------------------------------------------------------------------------------------

void Calls::refuse_inside(const Turn& which, const char* what) const {
  if (!Turn::is_held_here(&which)) return;
  throw Misplaced(
      std::string(what) + " was called by a signal handler while this thread waits in " +
      diagnosis.own_call() +
      ", of the same group, which cannot continue before the handler returns: let the handler set a "
      "flag, and call " +
      what + " after that call");
}

// Another thread's call has a deadline of its own, which may be later.
void Calls::wait_for_turn(std::unique_lock<Turn>& held, const char* what, Clock::duration timeout,
                          bool over_too) {
  refuse_inside(*held.mutex(), what);
  for (const auto start = Clock::now(); !held.try_lock_for(look_every);) {
    poll();
    if (!over_too) check_usable();
    if (Clock::now() - start < timeout) continue;
    std::ostringstream text;
    text << what << " timed out after " << std::chrono::duration<double>(timeout).count()
         << " s, before it began: another thread of rank " << rank << " is in " << diagnosis.own_call();
    throw Failure(Cause::timeout, rank, text.str());
  }
}

// --- collectives -------------------------------------------------------------------------------------------

const Record& Calls::note(const Plan& plan, std::size_t bytes, int bucket) {
  ++sequence_;
  history_ = contract::history(history_, plan.contract);
  account.begin(plan, bytes);
  current_ = &published.next(sequence_);
  *current_ = plan.record;
  current_->sequence = sequence_;
  current_->history = history_;
  if (bucket >= 0) name_bucket(*current_, bucket);
  published.began(sequence_);
  contract::show(*transport, *current_);
  return *current_;
}

void Calls::begin(const Call& call) {
  transport->check();
  const Plan& plan = planner.plan(call);
  Task task;
  task.plan = &plan;
  task.factor = call.factor.value_or(1);
  task.user_op = call.user_op;
  task.input = moved_back(call.input, plan.input.before);
  task.output = moved_back(call.output, plan.output.before);
  const std::size_t input_bytes = plan.input.bytes, output_bytes = plan.output.bytes;
  const auto* const input = static_cast<const std::byte*>(call.input);
  const auto* const output = static_cast<const std::byte*>(call.output);
  task.apart = input + input_bytes <= output || output + output_bytes <= input;
  task.bytes = std::max(input_bytes, output_bytes);
  task.touched = task.apart && input ? input_bytes + output_bytes : task.bytes;
  if (output_bytes >= Executor::lend_from) {
    task.output_reachable = call.output && transport->reachable(call.output, output_bytes);
  }
  if (input_bytes >= Executor::lend_from) {  // it may lie in the output, and one call is one use
    const bool is_output = call.input == call.output && input_bytes == output_bytes;
    task.input_reachable = is_output ? task.output_reachable : transport->reachable(call.input, input_bytes);
  }
  identity_.output = nullptr;
  if (gets_identity(call, rank)) identity_ = call;
  note(plan, task.bytes, call.bucket);
  task.contract = history_;
  executor.start(task);
}

bool Calls::is_brief(const Call& call) const {
  if (transport->facts().queues || transport->facts().oversubscribed) return false;
  if (call.input_extents) {
    return bytes_of_input(call, world, rank) <= brief && bytes_of_output(call, world, rank) <= brief;
  }
  const int blocks = has_blocks(call.collective) ? world : 1;  // of the longer array
  return call.count * static_cast<std::size_t>(blocks) * element_of(call) <= brief;
}

void Calls::begin_later(const Call& call) {
  try {
    begin(call);
  } catch (const InvalidArgument& refused) {
    throw Error(refused.what());
  }
}

void Calls::wait_to_end(Clock::duration timeout) {
  wait_until(
      *transport, account, sequence_, options.poll, [&] { return executor.done(); },
      [&] { return executor.advance(); }, [&] { return executor.waiting_for(); },
      [&](Clock::duration waited) { look_at(waited, timeout); });
}

void Calls::look_at(Clock::duration waited, Clock::duration timeout) {
  published.waits(executor.waiting_for(), Clock::now() - waited);
  if (waited >= timeout) time_out(timeout);
  if (said_.call != sequence_) said_ = {sequence_, {}};
  if (is_worth_a_word(waited, said_.again_after)) {
    say_who_is_late(executor.waiting_for(), sequence_, waited, now_doing());
  }
}

void Calls::say_who_is_late(int waiting_for, std::uint64_t number, Clock::duration waited,
                            const std::string& what) const {
  const int late = diagnosis.late_rank(waiting_for, number, waited);
  const std::string who = late < 0 ? "any rank" : "rank " + std::to_string(late);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(waited).count();
  std::string text = "has waited " + std::to_string(seconds) + " s for " + who + " in " + what;
  if (late >= 0 && diagnosis.begun(late) < number) text += "; " + who + " has not started it";
  say(log::Level::debug, text);
}

void Calls::time_out(Clock::duration timeout) const {
  diagnosis.time_out(timeout, diagnosis.late_rank(executor.waiting_for(), sequence_, timeout), sequence_,
                     now_doing());
}

std::string Calls::now_doing() const {
  return "call #" + std::to_string(current_->sequence) + ", " + in_words(*current_);
}

// --- messages ----------------------------------------------------------------------------------------------

void Calls::wait_for(const Request& request) {
  Clock::duration again_after{};
  wait_until(
      *transport, account, 0, options.poll, [&] { return request.done.load(std::memory_order_acquire); },
      [&] { return messages.advance(); }, [&] { return peer_of(request); },
      [&](Clock::duration waited) {
        look_at(request, waited);
        if (is_worth_a_word(waited, again_after)) {
          say_who_is_late(request.peer, 0, waited, in_words(request.transfer, rank));
        }
      });
}

void Calls::look_at(const Request& request, Clock::duration waited) {
  published.waits_for_message(request.peer, waited, in_words(request.transfer, rank));
  messages.look_around();
  if (waited >= or_default(request.transfer.timeout)) time_out(request);
}

// Lists messages that nobody asked for: one of them may have the tag that the caller meant.
void Calls::time_out(const Request& request) const {
  std::string what = in_words(request.transfer, rank);
  const std::string others = request.transfer.sends ? "" : messages.not_asked_for(request.transfer.peer);
  if (!others.empty()) what += " (arrived but not asked for: " + others + ")";
  const auto timeout = or_default(request.transfer.timeout);
  diagnosis.time_out(timeout, diagnosis.late_rank(request.peer, 0, timeout), 0, what);
}

int Calls::peer_of(const Request& request) const {
  const int peer = request.peer;
  return peer == rank ? -1 : peer;
}

bool Calls::flushed() const {
  return !transport->facts().queues ||
         (transport->flushed(Transport::point_to_point_lane) && transport->flushed(Transport::body_lane));
}

void Calls::flush(const Transfer& send) {
  if (flushed()) return;
  wait_until(
      *transport, account, 0, options.poll, [&] { return flushed(); }, [] { return false; },
      [&] { return send.peer; },
      [&](Clock::duration waited) {
        const auto timeout = or_default(send.timeout);
        if (waited < timeout) return;
        diagnosis.time_out(timeout, diagnosis.late_rank(send.peer, 0, timeout), 0, in_words(send, rank));
      });
}

// --- failing -----------------------------------------------------------------------------------------------

// Ends a call with the exception that is being thrown.
void Calls::end(const Transfer* message) {
  try {
    tell_others(message);
  } catch (const Closed&) {
    // By another thread. The caller may now change what peers still read in place, so they must know first. A
    // rank that has lent nothing may leave a background call unfinished: only those that wait for it fail.
    if (message ? message->sends : executor.has_lent()) {
      transport->abort(Failure(Cause::peer_lost, rank,
                               "rank " + std::to_string(rank) + " closed its communicator in " +
                                   (message ? in_words(*message, rank) : now_doing())));
    }
    throw;
  }
}

void Calls::tell_others(const Transfer* message) {
  try {
    throw;
  } catch (const Failure& failure) {
    fail_with_last_words(failure);
  } catch (const ContractBroken& broken) {
    fail(Failure(Cause::mismatch, broken.peer,
                 diagnosis.disagreement(broken.peer, sequence_) + lengths(broken)));
  } catch (const Disagreement& found) {
    fail(Failure(Cause::mismatch, found.peer, diagnosis.disagreement(found.peer, sequence_)));
  } catch (const OpFailed& failed) {
    fail(Failure(Cause::op_failed, rank,
                 failed.op + " failed on rank " + std::to_string(rank) + " in " + now_doing() +
                     ", which ended the group: " + failed.what()));
  } catch (const InvalidArgument&) {
    throw;  // refused before anything was sent
  } catch (const Closed& closed) {
    if (transport->fate().is_closed()) {
      messages.drop(std::make_exception_ptr(closed));  // before their callers free the arrays
    }
    throw;
  } catch (...) {
    // Others must not wait for a rank that leaves halfway.
    try {
      fail(Failure(Cause::peer_lost, rank,
                   "rank " + std::to_string(rank) + " was interrupted in " +
                       (message ? in_words(*message, rank) : now_doing())));
    } catch (const Failure&) {
    }
    throw;
  }
}

// Turns any other error into a failure of this rank.
void Calls::blame_self() const {
  try {
    throw;
  } catch (const Failure&) {
    throw;
  } catch (const InvalidArgument&) {
    throw;
  } catch (const Closed&) {
    throw;
  } catch (const Error& error) {
    check_usable();  // the call was aborted because the group failed elsewhere
    throw Failure(Cause::peer_lost, rank, "rank " + std::to_string(rank) + ": " + error.what());
  }
}

// Adds what this rank knows about a rank that it has found lost.
void Calls::fail_with_last_words(const Failure& failure) {
  const int lost = failure.culprit;
  if (failure.cause != Cause::peer_lost || lost < 0 || lost == rank || is_over() ||
      transport->fate().failure()) {
    fail(failure);
  }
  std::string text = failure.what() + diagnosis.last_words(lost);
  if (!executor.done()) text += "; rank " + std::to_string(rank) + " was in " + now_doing();
  fail(Failure(failure.cause, lost, text));
}

void Calls::fail(const Failure& found) {
  const bool was_closed = transport->fate().is_closed();
  // A rank that waits in a closed group hears of the closing first, because that may be why the others failed
  // and told us. A disagreement between ranks is still reported.
  if (!was_closed || found.cause == Cause::mismatch) transport->abort(found);
  if (was_closed) throw Closed("the communicator was closed");
  const Failure failure = *transport->fate().failure();
  published.over(PublishedState::State::failed, failure.what());
  if (!failure_said_.exchange(true))
    say(log::Level::info, std::string("the group failed: ") + failure.what());
  messages.drop(std::make_exception_ptr(failure));
  throw failure;
}

}  // namespace ringreduce

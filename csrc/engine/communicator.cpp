#include "engine/communicator.h"

#include <pthread.h>

#include <cstdlib>
#include <cstring>

#include "engine/contract.h"
#include "engine/gpu/watch.h"
#include "engine/planning/one_call.h"

namespace ringreduce {
namespace {

constexpr std::size_t default_lend_from = 16 << 10;
constexpr auto look_every = std::chrono::milliseconds(5);  // at signals and deadlines, while waiting
constexpr auto poll_every =
    std::chrono::microseconds(200);  // while sleeping, where there is something to poll

constexpr unsigned moves_between_looks = 64;  // a long call that never waits looks too

// Counts the forks above this process: a communicator belongs to the process that made it.
std::atomic<unsigned> forks{0};

unsigned watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { ++forks; }); });
  return forks;
}

std::atomic<bool (*)()> interrupt_check{nullptr};

// Steps that somebody else keeps, and waits for.
class Borrowed : public Steps {
 public:
  explicit Borrowed(Steps& steps) : steps_(steps) {}
  bool next(Call& call) override { return steps_.next(call); }

 private:
  Steps& steps_;
};

}  // namespace

Communicator::Communicator(std::unique_ptr<Transport> transport, Options options)
    : rank_(transport->rank),
      size_(transport->world),
      transport_name_(transport->name()),
      options_(options),
      transport_(std::move(transport)),
      planner_(rank_, size_,
               {tuning_of(transport_name_), transport_->capacity(), transport_->oversubscribed()},
               options_.reproducible, transport_->hosts()),
      executor_(*transport_),
      point_to_point_(*transport_),
      gpu_(as_gpus_need_it()),
      fork_epoch_(watch_forks()) {}

Communicator::~Communicator() {
  if (fork_epoch_ != forks) {
    // A forked child: the group, and the threads, are the parent's.
    transport_->disown();
    if (progress_thread_.joinable()) progress_thread_.detach();
    gpu_.disown();
    return;
  }
  leave();
}

GpuGroup Communicator::as_gpus_need_it() {
  return {
      .rank = rank_,
      .world = size_,
      .reproducible = options_.reproducible,
      .timeout = options_.timeout,
      .transport = *transport_,
      .planner = planner_,
      .check_usable = [this] { usable(); },
      .is_over = [this] { return closed_ || failed_; },
      .poll = [this] { options_.poll ? options_.poll() : check_interrupt(); },
      .run = [this](Steps& steps) { run(steps); },
      .guard = [this](const std::function<void()>& step) { guarded(step); },
      .note = [this](const Plan& plan) -> const Record& { return note(plan), current_; },
      .exchange = [this](const std::string& blob) { return exchange(blob); },
      .time_out = [this](const char* what) { time_out(options_.timeout, latest_rank(), what); },
      .first_disagreement = [this] { return first_disagreement(); },
      .rank_that_called_otherwise =
          [this](std::uint64_t number) { return rank_that_called_otherwise(number); },
  };
}

std::size_t Communicator::footprint() const {
  return transport_->footprint() + executor_.temp_bytes();
}

void Communicator::check_interrupt() {
  auto* check = interrupt_check.load(std::memory_order_relaxed);
  if (check && check()) throw Interrupted("interrupted");
}

bool Communicator::ours() const {
  return fork_epoch_ == forks;
}

void Communicator::set_interrupt_check(bool (*check)()) {
  interrupt_check = check;
}

void Communicator::usable() {
  if (fork_epoch_ != forks) {
    throw Closed(
        "this communicator belongs to the process that this one was forked from; make a new one here");
  }
  if (closed_.load(std::memory_order_relaxed)) throw Closed("the communicator is closed");
  if (failed_.load(std::memory_order_acquire)) {
    std::lock_guard lock(failure_mutex_);
    throw *failure_;
  }
}

void Communicator::run(const Call& call) {
  usable();
  if (pending_.load(std::memory_order_acquire) > 0) {
    run_behind(std::make_unique<OneCall>(call));
    return;
  }
  std::lock_guard lock(collective_mutex_);
  guarded([&] {
    begin(call);
    executor_.advance();
    if (!executor_.done()) run_to_end(or_default(call.timeout));
  });
}

void Communicator::run(Steps& steps) {
  usable();
  if (pending_.load(std::memory_order_acquire) > 0) {
    run_behind(std::make_unique<Borrowed>(steps));
    return;
  }
  std::lock_guard lock(collective_mutex_);
  guarded([&] {
    Call call;
    for (bool first = true; steps.next(call); first = false, call = Call()) {
      if (first) {
        begin(call);
      } else {
        begin_later(call);
      }
      executor_.advance();
      if (!executor_.done()) run_to_end(or_default(call.timeout));
    }
  });
}

// A call that is refused before anything was sent harms nobody. After that, the other ranks would wait.
void Communicator::begin_later(const Call& call) {
  try {
    begin(call);
  } catch (const InvalidArgument& refused) {
    throw Error(refused.what());
  }
}

// A blocking call does not return while the progress thread may still touch its buffers, however it ends.
void Communicator::run_behind(std::unique_ptr<Steps> steps) {
  const auto work = submit(std::move(steps));
  try {
    guarded([&] {
      if (options_.poll) {
        work->wait(std::nullopt, options_.poll, poll_every);
      } else {
        work->wait(std::nullopt, check_interrupt);
      }
    });
  } catch (...) {
    work->wait_over();
    throw;
  }
}

// The next call of this rank's, for itself and for the others.
void Communicator::note(const Plan& plan) {
  ++sequence_;
  history_ = contract::history(history_, plan.contract);
  current_ = plan.record;
  current_.sequence = sequence_;
  current_.history = history_;
  contract::show(*transport_, current_);
}

void Communicator::begin(const Call& call) {
  transport_->check_abort();
  const Plan& plan = planner_.plan(call);
  Task task;
  task.program = plan.program;
  task.geometry = &plan.geometry;
  task.full = plan.uneven ? nullptr : &plan.full;
  task.last_slice = plan.uneven ? nullptr : &plan.last_slice;
  task.combine = plan.combine;
  task.last = plan.last;
  task.scale = plan.scale;
  task.divide = plan.divide;
  task.factor = call.factor;
  task.wire = plan.wire;
  task.lend_from = default_lend_from;
  task.lanes = plan.lanes;
  std::size_t input_bytes = 0, output_bytes = 0;
  if (plan.geometry.whole) {
    task.input = static_cast<const std::byte*>(call.input);
    task.output = static_cast<std::byte*>(call.output);
    input_bytes = output_bytes = call.count * size_of(call.dtype);
  } else {
    task.input = input_of_all(call, rank_);
    task.output = output_of_all(call, rank_);
    input_bytes = bytes_of_input(call, size_, rank_);
    output_bytes = bytes_of_output(call, size_, rank_);
  }
  task.bytes = std::max(input_bytes, output_bytes);
  if (input_bytes >= task.lend_from) task.input_reachable = transport_->reachable(call.input, input_bytes);
  if (output_bytes >= task.lend_from) {
    task.output_reachable = call.output && transport_->reachable(call.output, output_bytes);
  }
  note(plan);
  task.contract = history_;
  executor_.start(task);
}

Clock::duration Communicator::longest_sleep() const {
  return options_.poll ? Clock::duration(poll_every) : Backoff().longest_sleep;
}

void Communicator::run_to_end(Clock::duration timeout) {
  Backoff backoff(longest_sleep());
  const auto start = Clock::now();
  auto last_look = start;
  unsigned moves = 0;
  while (!executor_.done()) {
    if (executor_.advance()) {
      backoff.reset();
      if (++moves % moves_between_looks != 0) continue;
      transport_->check_abort();
    } else if (!transport_->pause(backoff, executor_.waiting_for())) {
      continue;
    }
    if (options_.poll) options_.poll();
    const auto now = Clock::now();
    if (now - last_look < look_every) continue;
    last_look = now;
    if (!options_.poll) check_interrupt();
    if (now - start >= timeout) time_out(timeout, latest_rank(), now_doing());
  }
}

int Communicator::transfer(const Transfer& transfer) {
  usable();
  int peer = transfer.peer;
  guarded([&] {
    transport_->check_abort();
    if (transfer.sends && point_to_point_.send_at_once(transfer)) {
      if (transport_->queues()) flush(transfer);
      return;
    }
    const auto request = point_to_point_.enqueue(transfer);
    wait_for(*request);
    if (transfer.sends && transport_->queues()) flush(transfer);
    if (point_to_point_.fetching()) wake_progress();
    if (request->problem) std::rethrow_exception(request->problem);
    peer = request->peer;
  });
  return peer;
}

void Communicator::wait_for(const Request& request) {
  Backoff backoff;
  const auto start = Clock::now();
  auto last_look = start;
  unsigned moves = 0;
  while (!request.done.load(std::memory_order_acquire)) {
    if (point_to_point_.advance()) {
      backoff.reset();
      if (++moves % moves_between_looks != 0) continue;
      transport_->check_abort();
    } else if (!transport_->pause(backoff, peer_of(request))) {
      continue;
    }
    const auto now = Clock::now();
    if (now - last_look < look_every) continue;
    last_look = now;
    check_interrupt();
    if (closed_) throw Closed("the communicator was closed");
    point_to_point_.look_around();
    if (now - start >= or_default(request.transfer.timeout)) time_out(request);
  }
}

// Nobody else sees to it that a message goes when its sender has gone to compute.
void Communicator::flush(const Transfer& send) {
  Backoff backoff;
  const auto start = Clock::now();
  while (!transport_->flushed(Transport::point_to_point_lane) || !transport_->flushed(Transport::body_lane)) {
    if (!transport_->pause(backoff, send.peer)) continue;
    check_interrupt();
    if (closed_) throw Closed("the communicator was closed");
    if (Clock::now() - start >= or_default(send.timeout)) {
      time_out(or_default(send.timeout), send.peer, in_words(send, rank_));
    }
  }
}

// Whom a transfer waits for, or -1 where that is this rank itself or not known.
int Communicator::peer_of(const Request& request) const {
  const int peer = request.peer;
  return peer == rank_ ? -1 : peer;
}

std::string Communicator::now_doing() const {
  return "call #" + std::to_string(current_.sequence) + ", " + in_words(current_);
}

// Of a disagreement, who has told of it first has asked when all could still answer.
Failure Communicator::as_told(const Failure& failure) const {
  if (failure.cause != Cause::mismatch) return failure;
  try {
    transport_->check_abort();
  } catch (const Failure& told) {
    if (told.cause == Cause::mismatch) return told;
  }
  return failure;
}

void Communicator::fail(const Failure& found) {
  const Failure failure = as_told(found);
  if (closed_) {
    // Who waits here is told of that first: it may be what has failed the others, which then tell us. What
    // was found here while somebody closed is still news to them.
    if (failure.cause == Cause::mismatch) transport_->abort(failure);
    throw Closed("the communicator was closed");
  }
  {
    std::lock_guard lock(failure_mutex_);
    if (!failure_) failure_ = std::make_unique<Failure>(failure);
    failed_.store(true, std::memory_order_release);
  }
  transport_->abort(failure);
  point_to_point_.drop(std::make_exception_ptr(failure));
  throw failure;
}

int Communicator::add_schedule(const std::string& name, Schedule schedule, int heaviest_round,
                               bool in_rank_order) {
  std::lock_guard lock(collective_mutex_);
  return planner_.add(name, std::move(schedule), heaviest_round, in_rank_order);
}

void Communicator::close() {
  if (fork_epoch_ == forks && !closed_) {
    try {
      const auto deadline = Clock::now() + options_.timeout;
      while (!failed_ &&
             (pending_ + pending_transfers_ > 0 || (to_be_flushed() && Clock::now() < deadline))) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
        options_.poll ? options_.poll() : check_interrupt();
      }
      gpu_.finish();
    } catch (...) {
      leave();  // interrupted: nobody shall wait for this rank
      throw;
    }
  }
  leave();
}

void Communicator::leave() {
  if (closed_.exchange(true) || fork_epoch_ != forks) return;
  stop_progress();
  gpu_.leave();
  transport_->close();
  point_to_point_.drop(std::make_exception_ptr(Closed("the communicator was closed")));
}

}  // namespace ringreduce

#include "engine/communicator.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "engine/contract.h"
#include "engine/gpu/watch.h"
#include "engine/planning/one_call.h"
#include "engine/waiting.h"

namespace ringreduce {
namespace {

constexpr std::size_t default_lend_from = 16 << 10;
// Counts the forks above this process: a communicator belongs to the process that made it.
std::atomic<unsigned> forks{0};

unsigned watch_forks() {
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, [] { ++forks; }); });
  return forks;
}

// A timeout must be short enough to be added to the time.
Options bounded(Options options) {
  options.timeout = std::min<Clock::duration>(options.timeout, std::chrono::hours(24 * 365 * 30));
  return options;
}

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
      options_(bounded(options)),
      transport_(std::move(transport)),
      diagnosis_(*transport_),
      planner_(rank_, size_,
               {tuning_of(transport_name_), transport_->capacity(), transport_->oversubscribed()},
               options_.reproducible, transport_->hosts()),
      executor_(*transport_),
      point_to_point_(*transport_),
      gpu_(as_gpus_need_it()),
      fork_epoch_(watch_forks()) {
  check_instruction_set();  // throws here, before any call, if RINGREDUCE_ISA names one that the machine
                            // lacks
}

Communicator::~Communicator() {
  if (!ours()) {
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
      .diagnosis = diagnosis_,
      .planner = planner_,
      .check_usable = [this] { usable(); },
      .poll = [this] { options_.poll ? options_.poll() : check_interrupt(); },
      .run = [this](Steps& steps) { run(steps); },
      .guard = [this](const std::function<void()>& step) { guarded(step); },
      .note = [this](const Plan& plan) -> const Record& { return note(plan), current_; },
      .exchange = [this](const std::string& blob) { return exchange(blob); },
  };
}

std::size_t Communicator::footprint() const {
  return transport_->footprint() + executor_.temp_bytes();
}

bool Communicator::ours() const {
  return fork_epoch_ == forks;
}

void Communicator::usable() {
  if (!ours()) {
    throw Closed(
        "this communicator belongs to the process that this one was forked from; make a new one here");
  }
  fate().check();
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
  transport_->check();
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

void Communicator::run_to_end(Clock::duration timeout) {
  wait_until(
      *transport_, options_.poll, [&] { return executor_.done(); }, [&] { return executor_.advance(); },
      [&] { return executor_.waiting_for(); },
      [&](Clock::duration waited) {
        if (waited >= timeout) time_out(timeout);
      });
}

int Communicator::transfer(const Transfer& transfer) {
  usable();
  int peer = transfer.peer;
  guarded(&transfer, [&] {
    transport_->check();
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

void Communicator::swap(const Transfer& send, const Transfer& receive) {
  usable();
  guarded([&] {
    const auto coming = point_to_point_.enqueue(receive);
    const auto going = point_to_point_.enqueue(send);
    for (const auto& request : {coming, going}) {
      wait_for(*request);
      if (request->problem) std::rethrow_exception(request->problem);
    }
    if (transport_->queues()) flush(send);
  });
}

void Communicator::wait_for(const Request& request) {
  wait_until(
      *transport_, options_.poll, [&] { return request.done.load(std::memory_order_acquire); },
      [&] { return point_to_point_.advance(); }, [&] { return peer_of(request); },
      [&](Clock::duration waited) {
        point_to_point_.look_around();
        if (waited >= or_default(request.transfer.timeout)) time_out(request);
      });
}

// Nobody else sees to it that a message goes when its sender has gone to compute.
void Communicator::flush(const Transfer& send) {
  wait_until(
      *transport_, options_.poll,
      [&] {
        return transport_->flushed(Transport::point_to_point_lane) &&
               transport_->flushed(Transport::body_lane);
      },
      [] { return false; }, [&] { return send.peer; },
      [&](Clock::duration waited) {
        if (waited < or_default(send.timeout)) return;
        diagnosis_.time_out(or_default(send.timeout), send.peer, in_words(send, rank_));
      });
}

// Whom a transfer waits for, or -1 where that is this rank itself or not known.
int Communicator::peer_of(const Request& request) const {
  const int peer = request.peer;
  return peer == rank_ ? -1 : peer;
}

std::string Communicator::now_doing() const {
  return "call #" + std::to_string(current_.sequence) + ", " + in_words(current_);
}

void Communicator::time_out(Clock::duration timeout) const {
  diagnosis_.time_out(timeout, diagnosis_.late_rank(executor_.waiting_for(), sequence_, timeout),
                      now_doing());
}

// A message that waits unasked for may have the tag that was meant.
void Communicator::time_out(const Request& request) const {
  std::string what = in_words(request.transfer, rank_);
  const std::string others =
      request.transfer.sends ? "" : point_to_point_.not_asked_for(request.transfer.peer);
  if (!others.empty()) what += " (came, but was not asked for: " + others + ")";
  diagnosis_.time_out(or_default(request.transfer.timeout), request.peer, what);
}

// What else there is to say where the calls agree, but not on what one rank sends to another.
std::string Communicator::lengths(const ContractBroken& broken) {
  if (!broken.same_call) return "";
  return " by a message of " + std::to_string(broken.bytes) + " bytes, where " +
         std::to_string(broken.expected_bytes) + " were expected";
}

// Throws what the group has ended with, which may be what a peer has found.
void Communicator::fail(const Failure& found) {
  const bool was_closed = closed();
  // Who waits where the group was closed is told of that first: it may be what has failed the others, which
  // then tell us. That ranks disagree is still news to them.
  if (!was_closed || found.cause == Cause::mismatch) transport_->abort(found);
  if (was_closed) throw Closed("the communicator was closed");
  const Failure failure = *fate().failure();
  point_to_point_.drop(std::make_exception_ptr(failure));
  throw failure;
}

int Communicator::add_schedule(const std::string& name, Schedule schedule, int heaviest_round,
                               bool in_rank_order) {
  std::lock_guard lock(collective_mutex_);
  return planner_.add(name, std::move(schedule), heaviest_round, in_rank_order);
}

void Communicator::close() {
  if (ours() && !closed()) {
    try {
      const auto deadline = Clock::now() + options_.timeout;
      while (fate().is_open() &&
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
  if (!ours() || !fate().close()) return;
  transport_->wake();
  stop_progress();
  gpu_.leave();
  transport_->close();
  point_to_point_.drop(std::make_exception_ptr(Closed("the communicator was closed")));
}

}  // namespace ringreduce

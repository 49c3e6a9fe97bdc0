#include "engine/calls/progress.h"

#include <algorithm>
#include <utility>

#include "engine/calls/waiting.h"
#include "transport/interface/thread.h"

namespace ringreduce {
namespace {

constexpr const char* several = "a call of several collectives";

// A single call as steps. Copies what the call points to, except its buffers.
class OneCall : public Steps {
 public:
  explicit OneCall(const Call& call, Arrays arrays = {}) : call_(call), arrays_(std::move(arrays)) {
    if (!call.input_extents) return;
    input_ = *call.input_extents;
    output_ = *call.output_extents;
    call_.input_extents = &input_;
    call_.output_extents = &output_;
  }
  bool next(Call& call) override {
    if (over_) return false;
    over_ = true;
    call = call_;
    return true;
  }

 private:
  Call call_;
  Extents input_, output_;
  Arrays arrays_;
  bool over_ = false;
};

}  // namespace

// --- in the caller's thread --------------------------------------------------------------------------------

void Progress::run(const Call& call) {
  calls_.check_usable();
  const char* const what = name_of(call.collective);
  if (pending_.load(std::memory_order_acquire) > 0) {
    return run_behind(what, std::make_shared<OneCall>(call));
  }
  const auto turn = calls_.take_turn(calls_.turn, what, call.timeout);
  calls_.guarded([&] {
    calls_.begin(call);
    calls_.run_to_end(call.timeout);
    calls_.finish();
  });
}

void Progress::run(const Call& call, BeforeWaiting& before) {
  calls_.check_usable();
  std::unique_lock turn(calls_.turn, std::defer_lock);
  if (!calls_.is_brief(call) || pending_.load(std::memory_order_acquire) > 0 || !turn.try_lock()) {
    before();
    return run(call);
  }
  calls_.guarded([&] {
    calls_.begin(call);
    if (!calls_.run_for_a_moment()) {
      before();
      calls_.run_to_end(call.timeout);
    }
    calls_.finish();
  });
}

void Progress::run(Steps& steps) {
  calls_.check_usable();
  if (pending_.load(std::memory_order_acquire) > 0) {
    return run_behind(several, {std::shared_ptr<void>(), &steps});
  }
  const auto turn = calls_.take_turn(calls_.turn, several, {});
  calls_.guarded([&] {
    Call call;
    for (bool first = true; steps.next(call); first = false, call = Call()) {
      first ? calls_.begin(call) : calls_.begin_later(call);
      calls_.run_to_end(call.timeout);
      calls_.finish();
    }
  });
  if (const auto refusal = steps.refusal()) std::rethrow_exception(refusal);
}

// However a blocking call ends, it does not return while the progress thread may still touch its buffers.
void Progress::run_behind(const char* what, std::shared_ptr<Steps> steps) {
  calls_.refuse_inside_another(what);
  const auto work = submit(std::move(steps));
  const Clock::duration every = calls_.options.poll ? Clock::duration(poll_every) : look_every;
  try {
    calls_.guarded([&] { work->wait(std::nullopt, [this] { calls_.poll(); }, every); });
  } catch (...) {
    work->wait_over();
    throw;
  }
}

std::shared_ptr<Work> Progress::submit(const Call& call, Arrays arrays) {
  return submit(std::make_shared<OneCall>(call, std::move(arrays)));
}

std::shared_ptr<Work> Progress::submit(std::shared_ptr<Steps> steps) {
  calls_.check_usable();
  auto work = std::make_shared<Work>(&calls_.turn);
  hand_over([&] {
    queue_.push_back({std::move(steps), work, {}, false, {}});
    pending_.fetch_add(1);
    calls_.published.submitted();
  });
  return work;
}

// A transfer that need not wait finishes at once, without the progress thread.
std::shared_ptr<Work> Progress::submit(const Transfer& transfer, Arrays arrays) {
  calls_.check_usable();
  calls_.transport->check_background();
  auto work = std::make_shared<Work>();
  work->begin(Clock::now());
  PendingMessage message{nullptr, work, work->began()};
  if (calls_.transport->facts().queues) start_thread();  // which sends what is queued
  try {
    bool sent = false;
    calls_.guarded([&] {
      calls_.transport->check();
      sent = transfer.sends && calls_.messages.send_at_once(transfer);
    });
    if (!sent) {
      start_thread();
      calls_.guarded([&] {
        message.request = calls_.messages.enqueue(transfer, std::move(arrays));
        calls_.messages.advance();
        if (message.request->failed()) std::rethrow_exception(message.request->problem);
      });
    }
  } catch (const Failure&) {
    work->finish(std::current_exception());
    return work;
  }
  if (message.request && !message.is_over()) {
    hand_over([&] { messages_.push_back(std::move(message)); });
    calls_.transport->wake();
    return work;
  }
  message.request ? message.finish() : work->finish(nullptr);
  if (to_be_flushed()) wake();
  return work;
}

void Progress::start_thread() {
  const std::lock_guard lock(mutex_);
  if (stopping_) throw Closed("the communicator was closed");
  if (!thread_.joinable()) thread_ = thread_without_signals([this] { this->work(); });
}

// Pushes to a thread that is not stopping, or refuses.
template <typename Push>
void Progress::hand_over(Push push) {
  start_thread();
  const std::lock_guard lock(mutex_);
  if (stopping_) throw Closed("the communicator was closed");
  push();
  changed_->notify_all();
}

void Progress::wake() {
  try {
    hand_over([] {});
  } catch (const Error&) {  // it is closed, or has no thread
  }
}

bool Progress::is_idle() {
  const std::lock_guard lock(mutex_);
  return pending_ == 0 && messages_.empty();
}

void Progress::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_->notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

// --- in the thread -----------------------------------------------------------------------------------------

// Transfers also continue while a collective runs: a peer may need them to reach the collective at all.
void Progress::work() {
  Backoff backoff;
  TimedWaits timed(calls_.account, backoff);
  while (wait_for_something(timed)) {
    try {
      calls_.guarded([&] {
        const bool moved = advance_collective(timed);
        if (advance_messages() || moved) {
          timed.over();
        } else {
          pause(backoff, timed);
        }
      });
    } catch (...) {
      timed.over();
      drop(std::current_exception());
    }
  }
  drop(std::make_exception_ptr(Closed("the communicator was closed")));
}

bool Progress::wait_for_something(TimedWaits& timed) {
  std::unique_lock lock(mutex_);
  const auto there_is_something = [&] {
    return stopping_ || current_.work || !queue_.empty() || !messages_.empty() ||
           calls_.messages.fetching() || to_be_flushed();
  };
  if (!there_is_something()) {
    timed.over();  // an idle thread does not wait for a rank
    changed_->wait(lock, there_is_something);
  }
  return !stopping_;
}

bool Progress::advance_collective(TimedWaits& timed) {
  if (!current_.work) return begin_next();
  const bool moved = calls_.executor.advance();
  if (!calls_.executor.done()) return moved;
  timed.over();  // counted for this collective: afterwards a caller's may begin
  calls_.finish();
  begin_call();
  return true;
}

bool Progress::begin_next() {
  // A caller's own collective that began before anything was submitted goes first.
  std::unique_lock turn(calls_.turn, std::try_to_lock);
  if (!turn) return false;
  {
    const std::lock_guard lock(mutex_);
    if (queue_.empty()) return false;
    current_ = std::move(queue_.front());
    queue_.pop_front();
  }
  turn.release();  // held until it is finished
  try {
    begin_call();
  } catch (const InvalidArgument&) {
    finish_collective(std::current_exception());
  }
  return true;
}

// Begins the next of its steps, if there is one.
void Progress::begin_call() {
  current_.call = Call();
  if (!current_.steps->next(current_.call)) return finish_collective(current_.steps->refusal());
  current_.started = Clock::now();
  if (current_.begun) {
    calls_.begin_later(current_.call);
  } else {
    current_.work->begin(current_.started);
    calls_.begin(current_.call);
    current_.begun = true;
  }
}

void Progress::finish_collective(const std::exception_ptr& problem) {
  calls_.turn.unlock();
  PendingCollective over = std::exchange(current_, {});
  pending_.fetch_sub(1);
  calls_.published.finished();
  over.finish(problem);
}

void Progress::PendingCollective::finish(const std::exception_ptr& problem) {
  steps.reset();
  work->finish(problem);
}

bool Progress::advance_messages() {
  const bool moved = calls_.messages.advance();
  std::vector<PendingMessage> over;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(messages_, [&](const PendingMessage& message) {
      const bool is_over = message.is_over();
      if (is_over) over.push_back(message);
      return is_over;
    });
  }
  for (const PendingMessage& message : over) message.finish();
  for (const PendingMessage& message : over) {
    if (message.request->problem) std::rethrow_exception(message.request->problem);
  }
  return moved || !over.empty();
}

void Progress::PendingMessage::finish() const {
  if (!request->transfer.sends) work->set_source(request->peer);
  work->finish(request->problem);
}

void Progress::pause(Backoff& backoff, TimedWaits& timed) {
  int waiting_for = -1;
  if (current_.work) {
    waiting_for = calls_.executor.waiting_for();
  } else {
    const std::lock_guard lock(mutex_);
    if (!messages_.empty()) waiting_for = calls_.peer_of(*messages_.front().request);
  }
  timed.held_up_by(waiting_for, current_.work ? calls_.number() : 0);
  if (!calls_.transport->pause(backoff, waiting_for)) return;
  const auto timeout = calls_.or_default(current_.call.timeout);
  if (current_.work) calls_.look_at(Clock::now() - current_.started, timeout);
  check_messages();
}

// Each transfer has its own deadline, and a peer that may have closed.
void Progress::check_messages() {
  const auto now = Clock::now();
  RequestPointer late;  // or the oldest
  Clock::duration waited{};
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::find_if(messages_.begin(), messages_.end(), [&](const PendingMessage& message) {
      return now - message.submitted >= calls_.or_default(message.request->transfer.timeout);
    });
    const auto shown = found != messages_.end() ? found : messages_.begin();
    if (shown != messages_.end()) {
      late = shown->request;
      waited = now - shown->submitted;
    }
  }
  if (!late) return calls_.messages.look_around();
  if (!late->done.load(std::memory_order_acquire)) calls_.look_at(*late, waited);
}

void Progress::drop(const std::exception_ptr& problem) {
  if (current_.work) finish_collective(problem);
  std::deque<PendingCollective> queue;
  std::deque<PendingMessage> messages;
  {
    const std::lock_guard lock(mutex_);
    queue.swap(queue_);
    messages.swap(messages_);
  }
  for (PendingCollective& collective : queue) {
    pending_.fetch_sub(1);
    calls_.published.finished();
    collective.finish(problem);
  }
  for (const PendingMessage& message : messages) message.work->finish(problem);
}

}  // namespace ringreduce

// The asynchronous half of the communicator: the thread that runs submitted collectives in the order of
// submission, and moves point-to-point transfers on beside them.
#include "engine/communicator.h"
#include "engine/planning/one_call.h"
#include "transport/interface/thread.h"

namespace ringreduce {

std::shared_ptr<Work> Communicator::submit(const Call& call) {
  return submit(std::make_unique<OneCall>(call));
}

std::shared_ptr<Work> Communicator::submit(std::unique_ptr<Steps> steps) {
  usable();
  Pending pending;
  pending.steps = std::move(steps);
  pending.work = std::make_shared<Work>();
  auto work = pending.work;
  hand_over([&] {
    pending_.fetch_add(1);
    queue_.push_back(std::move(pending));
  });
  return work;
}

// What need not wait is over at once, and leaves the progress thread alone.
std::shared_ptr<Work> Communicator::submit(const Transfer& transfer) {
  usable();
  transport_->check_background();
  const auto work = std::make_shared<Work>();
  PendingTransfer pending{nullptr, work, Clock::now()};
  work->begin(pending.submitted);
  try {
    guarded([&] {
      transport_->check();
      if (transfer.sends && point_to_point_.send_at_once(transfer)) return;
      pending.request = point_to_point_.enqueue(transfer);
      point_to_point_.advance();
      if (pending.request->failed()) std::rethrow_exception(pending.request->problem);
    });
  } catch (const Failure&) {
    work->finish(std::current_exception());
    return work;
  }
  if (!pending.request || pending.request->done.load(std::memory_order_acquire)) {
    if (!transfer.sends) work->set_source(pending.request->peer);
    work->finish(nullptr);
    if (to_be_flushed()) wake_progress();
    return work;
  }
  hand_over([&] {
    pending_transfers_.fetch_add(1);
    transfers_.push_back(std::move(pending));
  });
  transport_->wake();
  return work;
}

// To a thread that is not stopping, or not at all.
template <typename Push>
void Communicator::hand_over(Push push) {
  {
    const std::lock_guard lock(queue_mutex_);
    if (stopping_) throw Closed("the communicator was closed");
    push();
  }
  wake_progress();
}

void Communicator::wake_progress() {
  const std::lock_guard lock(queue_mutex_);
  if (stopping_) return;
  if (!progress_thread_.joinable()) progress_thread_ = thread_without_signals([this] { progress(); });
  queue_changed_->notify_all();
}

// While a collective is under way transfers go on too: a peer may need them to come to the collective at all.
void Communicator::progress() {
  Backoff backoff;
  Pending current;
  while (wait_for_something(current)) {
    try {
      bool moved = advance_current(current);
      guarded([&] { moved |= point_to_point_.advance(); });
      moved |= finish_transfers();
      if (moved) {
        backoff.reset();
      } else {
        pause_progress(backoff, current);
      }
    } catch (...) {
      backoff.reset();
      drop_pending(current, std::current_exception());
    }
  }
  drop_pending(current, std::make_exception_ptr(Closed("the communicator was closed")));
}

// Messages that have been taken over, but not gone yet.
bool Communicator::to_be_flushed() const {
  return transport_->queues() && fate().is_open() &&
         !(transport_->flushed(Transport::point_to_point_lane) && transport_->flushed(Transport::body_lane));
}

bool Communicator::wait_for_something(const Pending& current) {
  std::unique_lock lock(queue_mutex_);
  queue_changed_->wait(lock, [&] {
    return stopping_ || current.work || !queue_.empty() || !transfers_.empty() ||
           point_to_point_.fetching() || to_be_flushed();
  });
  return !stopping_;
}

bool Communicator::begin_next(Pending& current) {
  // A caller's own collective, begun before anything was submitted, goes first.
  if (!collective_mutex_.try_lock()) return false;
  {
    std::lock_guard lock(queue_mutex_);
    if (!queue_.empty()) {
      current = std::move(queue_.front());
      queue_.pop_front();
    }
  }
  if (!current.work) {
    collective_mutex_.unlock();
    return false;
  }
  try {
    if (!begin_call(current)) finish_current(current, nullptr);
  } catch (const InvalidArgument&) {
    finish_current(current, std::current_exception());
  }
  return true;
}

bool Communicator::begin_call(Pending& current) {
  bool more = false;
  guarded([&] {
    current.call = Call();
    more = current.steps->next(current.call);
    if (!more) return;
    current.started = Clock::now();
    if (current.begun) {
      begin_later(current.call);
    } else {
      current.work->begin(current.started);
      begin(current.call);
      current.begun = true;
    }
  });
  return more;
}

bool Communicator::advance_current(Pending& current) {
  if (!current.work && !begin_next(current)) return false;
  if (!current.work) return true;
  bool moved = false;
  guarded([&] { moved = executor_.advance(); });
  if (!executor_.done()) return moved;
  if (!begin_call(current)) finish_current(current, nullptr);
  return true;
}

void Communicator::finish_current(Pending& current, const std::exception_ptr& problem) {
  collective_mutex_.unlock();
  const Pending over = std::move(current);
  current = Pending();
  pending_.fetch_sub(1);
  over.work->finish(problem);
}

bool Communicator::finish_transfers() {
  std::vector<PendingTransfer> over;
  {
    std::lock_guard lock(queue_mutex_);
    for (auto it = transfers_.begin(); it != transfers_.end();) {
      if (it->request->done.load(std::memory_order_acquire)) {
        over.push_back(std::move(*it));
        it = transfers_.erase(it);
      } else {
        ++it;
      }
    }
  }
  std::exception_ptr problem;
  for (const PendingTransfer& transfer : over) {
    if (transfer.request->problem) problem = transfer.request->problem;
    finish(transfer);
  }
  if (problem) guarded([&] { std::rethrow_exception(problem); });
  return !over.empty();
}

void Communicator::finish(const PendingTransfer& transfer) {
  if (!transfer.request->transfer.sends) transfer.work->set_source(transfer.request->peer);
  pending_transfers_.fetch_sub(1);
  transfer.work->finish(transfer.request->problem);
}

void Communicator::pause_progress(Backoff& backoff, Pending& current) {
  int waiting_for = -1;
  if (current.work) {
    waiting_for = executor_.waiting_for();
  } else {
    std::lock_guard lock(queue_mutex_);
    if (!transfers_.empty()) waiting_for = peer_of(*transfers_.front().request);
  }
  guarded([&] {
    if (!transport_->pause(backoff, waiting_for)) return;
    if (current.work) {
      const auto timeout = or_default(current.call.timeout);
      if (Clock::now() - current.started >= timeout) time_out(timeout);
    }
    check_transfers();
  });
}

// Each has a deadline of its own, and a peer that may have closed.
void Communicator::check_transfers() {
  const auto now = Clock::now();
  RequestPointer late;
  {
    std::lock_guard lock(queue_mutex_);
    for (const PendingTransfer& transfer : transfers_) {
      if (now - transfer.submitted < or_default(transfer.request->transfer.timeout)) continue;
      late = transfer.request;
      break;
    }
  }
  point_to_point_.look_around();
  if (late && !late->done.load(std::memory_order_acquire)) time_out(*late);
}

void Communicator::drop_pending(Pending& current, const std::exception_ptr& problem) {
  if (current.work) finish_current(current, problem);
  std::deque<Pending> queue;
  std::deque<PendingTransfer> transfers;
  {
    std::lock_guard lock(queue_mutex_);
    queue.swap(queue_);
    transfers.swap(transfers_);
  }
  for (const Pending& pending : queue) {
    pending_.fetch_sub(1);
    pending.work->finish(problem);
  }
  for (const PendingTransfer& transfer : transfers) {
    pending_transfers_.fetch_sub(1);
    transfer.work->finish(problem);
  }
}

void Communicator::stop_progress() {
  {
    const std::lock_guard lock(queue_mutex_);
    stopping_ = true;
    queue_changed_->notify_all();
  }
  if (progress_thread_.joinable()) progress_thread_.join();
}

}  // namespace ringreduce

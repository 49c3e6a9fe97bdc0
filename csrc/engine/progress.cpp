// The asynchronous half of the communicator: the thread that runs submitted collectives in the order of
// submission, and moves point-to-point transfers on beside them.
#include "engine/communicator.h"
#include "engine/one_call.h"

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
  {
    std::lock_guard lock(queue_mutex_);
    pending_.fetch_add(1);
    queue_.push_back(std::move(pending));
  }
  wake_progress();
  return work;
}

std::shared_ptr<Work> Communicator::submit(const Transfer& transfer) {
  usable();
  auto work = std::make_shared<Work>();
  {
    std::lock_guard lock(queue_mutex_);
    pending_transfers_.fetch_add(1);
    transfers_.push_back({point_to_point_.enqueue(transfer), work, Clock::now()});
  }
  wake_progress();
  return work;
}

void Communicator::wake_progress() {
  std::lock_guard lock(queue_mutex_);
  if (!progress_thread_.joinable()) progress_thread_ = std::thread([this] { progress(); });
  queue_changed_->notify_all();
}

// While a collective is under way transfers go on too: a peer may need them to come to the collective at all.
void Communicator::progress() {
  Backoff backoff;
  Pending current;
  while (wait_for_something(current)) {
    try {
      bool moved = advance_current(current);
      moved |= point_to_point_.advance();
      moved |= settle_transfers();
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

bool Communicator::wait_for_something(const Pending& current) {
  std::unique_lock lock(queue_mutex_);
  queue_changed_->wait(lock,
                       [&] { return stopping_ || current.work || !queue_.empty() || !transfers_.empty(); });
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

bool Communicator::settle_transfers() {
  std::vector<PendingTransfer> over;
  {
    std::lock_guard lock(queue_mutex_);
    for (auto it = transfers_.begin(); it != transfers_.end();) {
      if (point_to_point_.done(*it->job)) {
        over.push_back(std::move(*it));
        it = transfers_.erase(it);
      } else {
        ++it;
      }
    }
  }
  std::exception_ptr problem;
  for (const PendingTransfer& transfer : over) {
    if (transfer.job->problem) problem = transfer.job->problem;
    pending_transfers_.fetch_sub(1);
    transfer.work->finish(transfer.job->problem);
  }
  if (problem) guarded([&] { std::rethrow_exception(problem); });
  return !over.empty();
}

void Communicator::pause_progress(Backoff& backoff, Pending& current) {
  PendingTransfer oldest;
  {
    std::lock_guard lock(queue_mutex_);
    if (!transfers_.empty()) oldest = transfers_.front();
  }
  const int waiting_for = current.work ? executor_.waiting_for()
                          : oldest.job ? oldest.job->transfer.peer
                                       : -1;
  guarded([&] {
    if (!transport_->pause(backoff, waiting_for)) return;
    const auto now = Clock::now();
    if (current.work) {
      const auto timeout = or_default(current.call.timeout);
      if (now - current.started >= timeout) time_out(timeout, latest_rank(), now_doing());
    }
    if (!oldest.job) return;
    const Transfer& transfer = oldest.job->transfer;
    const auto timeout = or_default(transfer.timeout);
    if (now - oldest.submitted >= timeout) time_out(timeout, transfer.peer, in_words(transfer, rank_));
  });
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
  stopping_ = true;
  {
    std::lock_guard lock(queue_mutex_);
    queue_changed_->notify_all();
  }
  if (progress_thread_.joinable()) progress_thread_.join();
}

}  // namespace ringreduce

#include "fronts/torch/work.h"

#include <ATen/record_function.h>

#include <mutex>
#include <set>

#include "fronts/torch/callbacks.h"
#include "fronts/torch/gil.h"

namespace ringreduce::torch_backend {
namespace {

constexpr auto look_every = std::chrono::milliseconds(20);  // signals, while waiting

void complete(const c10::intrusive_ptr<Future>& future, const std::exception_ptr& problem,
              c10::IValue value) {
  if (problem) {
    future->setErrorIfNeeded(problem);
  } else {
    future->markCompleted(std::move(value));
  }
}

c10::IValue outcome_of(const std::exception_ptr& problem) {
  return static_cast<std::int64_t>(problem ? c10d::WorkResult::COMM_ERROR : c10d::WorkResult::SUCCESS);
}

std::uint64_t new_key() {
  static std::atomic<std::uint64_t> latest{0};
  return ++latest;
}

}  // namespace

const char* title_if_asked(const char* title, const std::string& name) {
  if (!at::hasCallbacks()) return nullptr;
  static std::mutex mutex;
  static auto& titles = *new std::set<std::string>;  // never destroyed: works keep what they point to
  const std::lock_guard lock(mutex);
  return titles.insert(name + ":" + title).first->c_str();
}

RingWork::RingWork(const About& about, const Tensors& inputs, std::vector<Tensors> outputs)
    : Work(about.rank, about.type, about.title, inputs),
      sequence_(about.sequence),
      key_(new_key()),
      timeout_(about.timeout),
      ranks_(about.ranks),
      group_(about.group),
      peer_(about.peer),
      is_message_(c10d::isP2POp(about.type)),
      extra_(about.extra->begins(key_) ? about.extra : nullptr),
      outputs_(std::move(outputs)) {}

c10::intrusive_ptr<RingWork> RingWork::self() {
  return c10::intrusive_ptr<RingWork>::unsafe_reclaim_from_nonowning(this);
}

void RingWork::end(const std::exception_ptr& problem, int source) {
  source_ = source;
  if (extra_) extra_->ends(key_);
  const std::exception_ptr torchs = as_torch(problem, *ranks_);
  const std::lock_guard lock(futures_mutex_);
  finish(torchs);
  over_.store(true, std::memory_order_release);
  if (!future_ && !outcome_) return;
  call_back([work = self(), torchs] {
    if (work->outcome_) work->outcome_->markCompleted(outcome_of(torchs));
    if (work->future_) complete(work->future_, torchs, work->value());
  });
}

bool RingWork::wait(std::chrono::milliseconds timeout) {
  const StaysAtEnd here;
  const auto start = std::chrono::steady_clock::now();
  while (!over_.load(std::memory_order_acquire)) {
    std::unique_lock lock(mutex_);
    cv_.wait_for(lock, look_every, [this] { return completed_; });
    const bool over = completed_;
    lock.unlock();
    if (over) break;
    raise_if_interrupted();
    refuse_inside_another();
    if (timeout != kNoTimeout && std::chrono::steady_clock::now() - start >= timeout) {
      time_out(timeout);
    }
  }
  // A thread that waits for the work finds its future complete as well; its callbacks may still run.
  c10::intrusive_ptr<Future> future;
  {
    const std::lock_guard lock(futures_mutex_);
    future = future_;
  }
  if (future) future->wait();
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

void RingWork::refuse_inside_another() const {
  const auto group = is_message_ ? nullptr : group_.lock();
  TORCH_CHECK(
      !group || !group->in_a_call(),
      "ringreduce: a signal handler waits for an operation that cannot begin before the handler "
      "returns, because this thread is in another operation of the group: wait for it after that one");
}

void RingWork::time_out(std::chrono::milliseconds timeout) const {
  const auto group = group_.lock();
  const int rank = peer_ >= 0 ? peer_ : group ? group->latest() : -1;
  std::string whom = rank >= 0 ? " for rank " + std::to_string(rank) : "";
  if (rank >= 0 && peer_ < 0) whom += std::string(" in ") + group->latest_call(rank).data();
  const std::string text = "wait() gave up after " + std::to_string(timeout.count()) + " ms" + whom +
                           "; the operation itself continues";
  raise(Trouble(Outcome::timeout, rank, text.c_str()), *ranks_);
}

void RingWork::abort() {
  C10_THROW_ERROR(Error, "ringreduce: a single operation cannot be aborted; abort the process group instead");
}

Tensors RingWork::result() {
  TORCH_CHECK(isCompleted(), "ringreduce: result() must be called after wait()");
  TORCH_CHECK(outputs_.size() <= 1, "ringreduce: this operation has several results; use get_future()");
  return outputs_.empty() ? Tensors() : outputs_.front();
}

c10::IValue RingWork::value() const {
  if (outputs_.size() > 1) return outputs_;
  return outputs_.empty() ? Tensors() : outputs_.front();
}

c10::intrusive_ptr<Future> RingWork::getFuture() {
  const std::lock_guard lock(futures_mutex_);
  if (future_) return future_;
  auto type = c10::TypePtr(c10::ListType::ofTensors());
  if (outputs_.size() > 1) type = c10::ListType::create(type);
  future_ = c10::make_intrusive<Future>(type);
  if (over_) complete(future_, exception_, value());
  return future_;
}

c10::intrusive_ptr<Future> RingWork::getFutureResult() {
  const std::lock_guard lock(futures_mutex_);
  if (outcome_) return outcome_;
  outcome_ = c10::make_intrusive<Future>(c10::IntType::get());
  if (over_) outcome_->markCompleted(outcome_of(exception_));
  return outcome_;
}

CoalescedWork::CoalescedWork(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works)
    : Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}

bool CoalescedWork::isCompleted() {
  return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isCompleted(); });
}

bool CoalescedWork::isSuccess() const {
  return std::all_of(works_.begin(), works_.end(), [](const auto& work) { return work->isSuccess(); });
}

std::exception_ptr CoalescedWork::exception() const {
  for (const auto& work : works_) {
    if (const auto problem = work->exception()) return problem;
  }
  return nullptr;
}

bool CoalescedWork::wait(std::chrono::milliseconds timeout) {
  for (const auto& work : works_) work->wait(timeout);
  return true;
}

void CoalescedWork::synchronize() {
  for (const auto& work : works_) work->synchronize();
}

Tensors CoalescedWork::result() {
  Tensors all;
  for (const auto& work : works_) {
    for (const at::Tensor& tensor : work->result()) all.push_back(tensor);
  }
  return all;
}

c10::intrusive_ptr<Future> CoalescedWork::getFuture() {
  c10::List<c10::intrusive_ptr<Future>> futures(c10::FutureType::create(c10::ListType::ofTensors()));
  for (const auto& work : works_) futures.push_back(work->getFuture());
  return c10::collectAll(futures);
}

}  // namespace ringreduce::torch_backend

// The communicator's collectives of arrays in GPU memory. Kernels wait for their peers' kernels, on which the
// host has no say: a thread looks after them, and ends them where they would wait for ever.
#include <algorithm>
#include <functional>

#include "engine/communicator.h"
#include "engine/device_calls.h"
#include "engine/device_work.h"
#include "engine/nccl_calls.h"

namespace ringreduce {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds worth_a_look{40};  // of a call that lasts: to look takes a core
constexpr milliseconds suspicious_after{100};

// All ranks must begin their calls in the same order, so it waits for asynchronous ones that are under way.
class Launch : public Steps {
 public:
  explicit Launch(std::function<void()> launch) : launch_(std::move(launch)) {}
  bool next(Call&) override {
    launch_();
    return false;
  }

 private:
  const std::function<void()> launch_;
};

}  // namespace

// The same on all ranks.
void Communicator::check_that_gpus_serve() const {
  if (size_ > device::most_ranks) {
    throw InvalidArgument("a group of " + std::to_string(size_) +
                          " ranks is too large for GPUs, which serve " + std::to_string(device::most_ranks));
  }
  const std::vector<int> hosts = transport_->hosts();
  if (std::adjacent_find(hosts.begin(), hosts.end(), std::not_equal_to<>()) == hosts.end()) return;
  throw InvalidArgument("arrays in GPU memory are served where all ranks share a host, and these do not");
}

// A collective, the first time. All ranks fail with it, or none.
DeviceCalls& Communicator::device_calls(int device) {
  const std::lock_guard lock(device_mutex_);
  if (!device_calls_) {
    check_that_gpus_serve();
    const Exchange among_all = [&](const std::string& blob) { return exchange(blob); };
    exchange_or_fail(among_all, [&] {
      const OnDevice there(CudaLibrary::get(), device);
      return std::string();
    });
    device_calls_ = std::make_unique<DeviceCalls>(rank_, size_, device, options_.reproducible, among_all);
    device_watch_ = watch(*device_calls_, [this](Progress& progress) {
      if (const int peer = device_calls_->differing(); peer >= 0) throw Disagreement{peer};
      look_for_what_is_stuck(*device_calls_, progress, "a collective on its GPU");
    });
  }
  if (device_calls_->device() == device) return *device_calls_;
  throw InvalidArgument("the array is in the memory of GPU " + std::to_string(device) +
                        ", and this rank's collectives run on GPU " +
                        std::to_string(device_calls_->device()));
}

void Communicator::prepare_device(int device) {
  usable();
  if (schedules_use_nccl()) {
    nccl_calls(device);
  } else {
    device_calls(device);
  }
}

void Communicator::in_order(const std::function<void()>& launch) {
  if (pending_.load(std::memory_order_acquire) > 0) return run_behind(std::make_unique<Launch>(launch));
  const std::lock_guard lock(collective_mutex_);
  guarded(launch);
}

void Communicator::enqueue(const Call& call, std::optional<void*> stream) {
  usable();
  if (call.algorithm == by_nccl || schedules_use_nccl()) return enqueue_over_nccl(call, stream);
  DeviceCalls& calls = device_calls(call.device);
  if (calls.by_events()) return enqueue_by_events(calls, call, stream.value_or(calls.stream()));
  const auto over_nccl = nccl_calls_in_use();
  in_order([&] {
    transport_->check_abort();
    void* const chosen = stream.value_or(calls.stream());
    calls.check_stream(chosen);
    const Plan& plan = calls.plan(call);
    note(plan);
    if (over_nccl) keep_order(over_nccl->last(), call.device, chosen);
    calls.launch(call, plan, history_, chosen);
    last_launched_ = sequence_;
  });
}

std::shared_ptr<DeviceWork> Communicator::enqueue_beside(const Call& call, std::optional<void*> stream) {
  prepare_device(call.device);
  void* const own = device_stream();
  auto work = std::make_shared<DeviceWork>(call.device);
  if (stream) work->come_behind(*stream, own);
  enqueue(call, own);
  work->launched(own);
  return work;
}

// Its meetings are collectives of the CPU's, which see to it that all ranks call the same and live.
void Communicator::enqueue_by_events(DeviceCalls& calls, const Call& call, void* stream) {
  const std::lock_guard one_at_a_time(events_mutex_);
  const Plan* plan = nullptr;
  in_order([&] {
    transport_->check_abort();
    plan = &calls.plan(call);
    note(*plan);
  });
  const Exchange meet = [&](const std::string& blob) { return exchange(blob); };
  calls.by_events()->run(call, *plan, stream, meet);
}

void* Communicator::device_stream() {
  const std::lock_guard lock(device_mutex_);
  if (device_calls_) return device_calls_->stream();
  return nccl_calls_ ? nccl_calls_->stream() : nullptr;
}

std::size_t Communicator::device_footprint() {
  const std::lock_guard lock(device_mutex_);
  return (device_calls_ ? device_calls_->footprint() : 0) + (nccl_calls_ ? nccl_calls_->footprint() : 0);
}

// What it finds wrong ends the group, and the next call throws it.
std::unique_ptr<Watch> Communicator::watch(GpuCalls& calls, std::function<void(Progress&)> look) {
  return std::make_unique<Watch>(
      [this, &calls, look = std::move(look), progress = std::make_shared<Progress>()] {
        if (failed_) return calls.give_up();
        try {
          guarded([&] { look(*progress); });
        } catch (const Error&) {
          calls.give_up();
        }
      });
}

// Throws what is wrong where calls have not moved on for long. That ranks call different things shows in what
// each has noted down, and is believed when it shows twice.
void Communicator::look_for_what_is_stuck(GpuCalls& calls, Progress& progress, const char* what) {
  transport_->check_abort();
  const std::uint64_t ended = calls.ended();
  if (calls.begun() == ended || ended != progress.ended || progress.since == Clock::time_point()) {
    progress.ended = ended;
    progress.since = Clock::now();
    progress.disagreement.reset();
    progress.backoff.reset();
    return;
  }
  if (Clock::now() - progress.since < worth_a_look) return;
  // As a thread that waits for peers does, which finds out when one of them is dead.
  while (!closed_ && calls.ended() == ended && !transport_->pause(progress.backoff, -1)) {
  }
  const auto lasted = Clock::now() - progress.since;
  if (lasted >= options_.timeout) time_out(options_.timeout, latest_rank(), what);
  if (lasted < suspicious_after) return;
  check_closed();
  const auto found = first_disagreement();
  if (found && found == progress.disagreement) throw Disagreement{rank_that_called_otherwise(*found)};
  progress.disagreement = found;
}

// Another one than this.
int Communicator::rank_that_called_otherwise(std::uint64_t number) const {
  std::vector<std::uint64_t> histories(static_cast<std::size_t>(size_));
  for (int rank = 0; rank < size_; ++rank) {
    for (const Record& record : transport_->records(rank)) {
      if (record.sequence == number) histories[rank] = record.history;
    }
  }
  for (int rank = 0; rank < size_; ++rank) {
    if (histories[rank] != 0 && histories[rank] != histories[rank_]) return rank;
  }
  return rank_ == 0 ? size_ - 1 : 0;  // by now they have gone on
}

// A rank that closed before it made a call that this one has made never will. What it had to say before is
// heard by now.
void Communicator::check_closed() const {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_ || !transport_->closed(peer)) continue;
    const std::vector<Record> records = transport_->records(peer);
    const std::uint64_t last = records.empty() ? 0 : records.back().sequence;
    if (last >= last_launched_) continue;
    throw Failure(Cause::peer_lost, peer,
                  "rank " + std::to_string(peer) + " closed its communicator while rank " +
                      std::to_string(rank_) + " was waiting for it in a collective on its GPU");
  }
}

// Until those that were launched are over.
void Communicator::wait_for(GpuCalls& calls) {
  while (!failed_ && !calls.is_idle()) {
    std::this_thread::sleep_for(milliseconds(1));
    options_.poll ? options_.poll() : check_interrupt();
  }
}

void Communicator::finish_device_calls() {
  const std::lock_guard lock(device_mutex_);
  if (device_calls_) wait_for(*device_calls_);
}

void Communicator::leave_device() {
  const std::lock_guard lock(device_mutex_);
  if (!device_calls_) return;
  device_watch_.reset();
  device_calls_->give_up();
  device_calls_.reset();
}

// Of a forked child nothing can be given back: the GPU knows the parent only.
void Communicator::disown_device() {
  if (device_watch_) device_watch_->disown();
  [[maybe_unused]] const DeviceCalls* kept = device_calls_.release();
}

}  // namespace ringreduce

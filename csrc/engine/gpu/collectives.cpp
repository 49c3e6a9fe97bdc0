#include "engine/gpu/collectives.h"

#include <algorithm>

#include "engine/communicator.h"
#include "engine/gpu/kernels/runner.h"
#include "engine/gpu/nccl/runner.h"
#include "engine/gpu/work.h"
#include "engine/waiting.h"

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

OnGpu::OnGpu(Communicator& group) : group_(group) {}

OnGpu::~OnGpu() = default;

// The same on all ranks.
void OnGpu::check_that_gpus_serve() const {
  if (group_.size_ > device::most_ranks) {
    throw InvalidArgument("a group of " + std::to_string(group_.size_) +
                          " ranks is too large for GPUs, which serve " + std::to_string(device::most_ranks));
  }
  const std::vector<int> hosts = group_.transport_->hosts();
  if (std::adjacent_find(hosts.begin(), hosts.end(), std::not_equal_to<>()) == hosts.end()) return;
  throw InvalidArgument("arrays in GPU memory are served where all ranks share a host, and these do not");
}

// A collective, the first time. All ranks fail with it, or none.
DeviceCalls& OnGpu::device_calls(int device) {
  const std::lock_guard lock(mutex_);
  if (!device_calls_) {
    check_that_gpus_serve();
    const Exchange among_all = [&](const std::string& blob) { return group_.exchange(blob); };
    exchange_or_fail(among_all, [&] {
      const OnDevice there(CudaLibrary::get(), device);
      return std::string();
    });
    device_calls_ = std::make_unique<DeviceCalls>(group_.rank_, group_.size_, device,
                                                  group_.options_.reproducible, among_all);
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

void OnGpu::prepare(int device) {
  group_.usable();
  if (schedules_use_nccl()) {
    nccl_calls(device);
  } else {
    device_calls(device);
  }
}

void OnGpu::in_order(const std::function<void()>& launch) {
  if (group_.pending_.load(std::memory_order_acquire) > 0)
    return group_.run_behind(std::make_unique<Launch>(launch));
  const std::lock_guard lock(group_.collective_mutex_);
  group_.guarded(launch);
}

void OnGpu::enqueue(const Call& call, std::optional<void*> stream) {
  group_.usable();
  if (call.algorithm == by_nccl || schedules_use_nccl()) return enqueue_over_nccl(call, stream);
  DeviceCalls& calls = device_calls(call.device);
  if (calls.by_events()) return enqueue_by_events(calls, call, stream.value_or(calls.stream()));
  const auto over_nccl = nccl_calls_in_use();
  in_order([&] {
    group_.transport_->check();
    void* const chosen = stream.value_or(calls.stream());
    calls.check_stream(chosen);
    const Plan& plan = calls.plan(call);
    group_.note(plan);
    if (over_nccl) keep_order(over_nccl->last(), call.device, chosen);
    calls.launch(call, plan, group_.history_, chosen);
    last_launched_ = group_.sequence_;
  });
}

std::shared_ptr<DeviceWork> OnGpu::enqueue_beside(const Call& call, std::optional<void*> stream) {
  prepare(call.device);
  void* const own = own_stream();
  auto work = std::make_shared<DeviceWork>(call.device);
  if (stream) work->come_behind(*stream, own);
  enqueue(call, own);
  work->launched(own);
  return work;
}

// Its meetings are collectives of the CPU's, which see to it that all ranks call the same and live.
void OnGpu::enqueue_by_events(DeviceCalls& calls, const Call& call, void* stream) {
  const std::lock_guard one_at_a_time(events_mutex_);
  const Plan* plan = nullptr;
  in_order([&] {
    group_.transport_->check();
    plan = &calls.plan(call);
    group_.note(*plan);
  });
  const Exchange meet = [&](const std::string& blob) { return group_.exchange(blob); };
  calls.by_events()->run(call, *plan, stream, meet);
}

void* OnGpu::own_stream() {
  const std::lock_guard lock(mutex_);
  if (device_calls_) return device_calls_->stream();
  return nccl_calls_ ? nccl_calls_->stream() : nullptr;
}

std::size_t OnGpu::footprint() {
  const std::lock_guard lock(mutex_);
  return (device_calls_ ? device_calls_->footprint() : 0) + (nccl_calls_ ? nccl_calls_->footprint() : 0);
}

// What it finds wrong ends the group, and the next call throws it.
std::unique_ptr<Watch> OnGpu::watch(GpuCalls& calls, std::function<void(Progress&)> look) {
  return std::make_unique<Watch>(
      [this, &calls, look = std::move(look), progress = std::make_shared<Progress>()] {
        if (!group_.fate().is_open()) return calls.give_up();
        try {
          group_.guarded([&] { look(*progress); });
        } catch (const Error&) {
          calls.give_up();
        }
      });
}

// Throws what is wrong where calls have not moved on for long. That ranks call different things shows in what
// each has noted down, and is believed when it shows twice.
void OnGpu::look_for_what_is_stuck(GpuCalls& calls, Progress& progress, const char* what) {
  group_.transport_->check();
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
  while (!group_.closed() && calls.ended() == ended && !group_.transport_->pause(progress.backoff, -1)) {
  }
  const auto lasted = Clock::now() - progress.since;
  if (lasted >= group_.options_.timeout)
    group_.diagnosis_.time_out(group_.options_.timeout,
                               group_.diagnosis_.late_rank(-1, group_.sequence_, group_.options_.timeout),
                               what);
  if (lasted < suspicious_after) return;
  check_closed();
  const auto found = group_.diagnosis_.first_disagreement();
  if (found && found == progress.disagreement)
    throw Disagreement{group_.diagnosis_.rank_that_called_otherwise(*found)};
  progress.disagreement = found;
}

// A rank that closed before it made a call that this one has made never will. What it had to say before is
// heard by now.
void OnGpu::check_closed() const {
  for (int peer = 0; peer < group_.size_; ++peer) {
    if (peer == group_.rank_ || !group_.transport_->closed(peer)) continue;
    const std::vector<Record> records = group_.transport_->records(peer);
    const std::uint64_t last = records.empty() ? 0 : records.back().sequence;
    if (last >= last_launched_) continue;
    throw Failure(Cause::peer_lost, peer,
                  "rank " + std::to_string(peer) + " closed its communicator while rank " +
                      std::to_string(group_.rank_) + " was waiting for it in a collective on its GPU");
  }
}

// Until those that were launched are over.
void OnGpu::wait_for(GpuCalls& calls) {
  while (group_.fate().is_open() && !calls.is_idle()) {
    std::this_thread::sleep_for(milliseconds(1));
    group_.options_.poll ? group_.options_.poll() : check_interrupt();
  }
}

void OnGpu::finish() {
  {
    const std::lock_guard lock(mutex_);
    if (device_calls_) wait_for(*device_calls_);
  }
  finish_nccl();
}

void OnGpu::leave() {
  leave_nccl();
  const std::lock_guard lock(mutex_);
  if (!device_calls_) return;
  device_watch_.reset();
  device_calls_->give_up();
  device_calls_.reset();
}

void OnGpu::disown() {
  if (device_watch_) device_watch_->disown();
  [[maybe_unused]] const DeviceCalls* kept = device_calls_.release();
  if (nccl_watch_) nccl_watch_->disown();
  static_cast<void>(new std::shared_ptr<NcclCalls>(std::move(nccl_calls_)));
}

}  // namespace ringreduce

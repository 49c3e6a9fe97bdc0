// Over NCCL: when it is used, and who looks after it. What NCCL puts on streams only ends before its time
// where NCCL is aborted.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string_view>

#include "engine/communicator.h"
#include "engine/gpu/collectives.h"
#include "engine/gpu/kernels/runner.h"
#include "engine/gpu/nccl/runner.h"
#include "engine/waiting.h"
#include "transport/interface/exchange.h"

namespace ringreduce {
namespace {

constexpr const char* variable = "RINGREDUCE_GPU_TRANSPORT";

std::string wanted_by_environment() {
  const char* const set = std::getenv(variable);
  const std::string_view value = set ? set : "";
  if (value == "" || value == "auto") return "";
  if (value == "cuda" || value == "nccl") return std::string(value);
  throw InvalidArgument(std::string(variable) + " must be auto, cuda or nccl, not '" + std::string(value) +
                        "'");
}

}  // namespace

// --- when --------------------------------------------------------------------------------------------------

// A collective, the first time.
bool OnGpu::schedules_use_nccl() {
  const std::lock_guard lock(mutex_);
  if (schedules_use_nccl_) return *schedules_use_nccl_;
  const std::vector<std::string> wanted = agree_on_transport();
  if (!wanted[0].empty()) {
    schedules_use_nccl_ = wanted[0] == "nccl";
    return *schedules_use_nccl_;
  }
  // Kernels reach their peers' memory on one host only.
  const std::vector<int> hosts = group_.transport_->hosts();
  const bool several = std::adjacent_find(hosts.begin(), hosts.end(), std::not_equal_to<>()) != hosts.end();
  schedules_use_nccl_ = several || group_.transport_->distant();
  return *schedules_use_nccl_;
}

std::vector<std::string> OnGpu::agree_on_transport() {
  std::vector<std::string> wanted =
      exchange_or_fail([&](const std::string& blob) { return group_.exchange(blob); }, wanted_by_environment);
  for (int rank = 1; rank < group_.size_; ++rank) {
    if (wanted[rank] == wanted[0]) continue;
    const auto named = [](const std::string& value) { return value.empty() ? "unset" : value; };
    throw Error(std::string(variable) + " is " + named(wanted[0]) + " on rank 0 and " + named(wanted[rank]) +
                " on rank " + std::to_string(rank));
  }
  return wanted;
}

// A collective, the first time. All ranks fail with it, or none.
std::shared_ptr<NcclCalls> OnGpu::nccl_calls(int device) {
  const std::lock_guard lock(mutex_);
  if (!nccl_calls_) {
    const Exchange among_all = [&](const std::string& blob) { return group_.exchange(blob); };
    exchange_or_fail(among_all, [&] {
      const OnDevice there(CudaLibrary::get(), device);
      NcclLibrary::get();
      return std::string();
    });
    nccl_calls_ = std::make_shared<NcclCalls>(
        group_.rank_, group_.size_, device, group_.options_.reproducible, group_.transport_->hosts(),
        group_.options_.timeout, among_all, [this] { wait_for_nccl(); });
    nccl_watch_ = watch(*nccl_calls_,
                        [this](Progress& progress) { guarded_from_nccl([&] { look_at_nccl(progress); }); });
  }
  if (nccl_calls_->device() == device) return nccl_calls_;
  throw InvalidArgument("the array is in the memory of GPU " + std::to_string(device) +
                        ", and this rank's collectives run on GPU " + std::to_string(nccl_calls_->device()));
}

std::shared_ptr<NcclCalls> OnGpu::nccl_calls_in_use() {
  const std::lock_guard lock(mutex_);
  return nccl_calls_;
}

// While NCCL waits for other ranks, in the thread of who has called it.
void OnGpu::wait_for_nccl() {
  group_.usable();
  group_.transport_->check();
  group_.options_.poll ? group_.options_.poll() : check_interrupt();
}

// --- what ranks call ---------------------------------------------------------------------------------------

// What NCCL refuses half-way it has refused this rank only: the others are told.
template <typename Step>
void OnGpu::guarded_from_nccl(Step step) {
  group_.guarded([&] {
    try {
      step();
    } catch (const Failure&) {
      throw;
    } catch (const InvalidArgument&) {
      throw;
    } catch (const Closed&) {
      throw;
    } catch (const Interrupted&) {
      throw;
    } catch (const Error& error) {
      group_.usable();  // aborted because of what has failed elsewhere
      throw Failure(Cause::peer_lost, group_.rank_,
                    "rank " + std::to_string(group_.rank_) + ": " + error.what());
    }
  });
}

// What kernels of ours and NCCL's do for one rank comes one after the other, as it was called.
void OnGpu::keep_order(void* event, int device, void* stream) {
  if (!event) return;
  const CudaLibrary& cuda = CudaLibrary::get();
  const OnDevice there(cuda, device);
  int captured = 0;
  CudaLibrary::check(cuda.is_captured(&captured, stream));
  if (!captured) CudaLibrary::check(cuda.wait(event, stream));
}

void OnGpu::enqueue_over_nccl(const Call& call, std::optional<void*> stream) {
  const auto calls = nccl_calls(call.device);
  void* const chosen = stream ? *stream : own_stream();
  const auto launch = [&] {
    group_.transport_->check();
    calls->follow(group_.planner_);
    const Plan& plan = calls->plan(call);
    group_.note(plan);
    if (device_calls_) keep_order(device_calls_->last(), call.device, chosen);
    calls->launch(call, plan, chosen, [this] { wait_for_nccl(); });
    last_launched_ = group_.sequence_;
  };
  in_order([&] { guarded_from_nccl(launch); });
}

void OnGpu::enroll(int device, void* memory, std::size_t bytes) {
  group_.usable();
  const auto calls = nccl_calls(device);
  const std::lock_guard lock(group_.collective_mutex_);
  guarded_from_nccl([&] { calls->enroll(memory, bytes, [this] { wait_for_nccl(); }); });
}

void OnGpu::withdraw(int device, void* memory) {
  group_.usable();
  const auto calls = nccl_calls(device);
  const std::lock_guard lock(group_.collective_mutex_);
  guarded_from_nccl([&] { calls->withdraw(memory, [this] { wait_for_nccl(); }); });
}

// --- who looks after it ------------------------------------------------------------------------------------

void OnGpu::look_at_nccl(Progress& progress) {
  if (const std::string failure = nccl_calls_->failure(); !failure.empty()) throw Error(failure);
  look_for_what_is_stuck(*nccl_calls_, progress, "a collective over NCCL");
}

// Those that were launched; then the other ranks are told that this one needs them no more.
void OnGpu::finish_nccl() {
  const std::lock_guard lock(mutex_);
  if (!nccl_calls_) return;
  wait_for(*nccl_calls_);
  if (!group_.fate().is_open()) return;
  nccl_calls_->finish(group_.options_.timeout,
                      [this] { group_.options_.poll ? group_.options_.poll() : check_interrupt(); });
}

void OnGpu::leave_nccl() {
  const std::lock_guard lock(mutex_);
  if (!nccl_calls_) return;
  // What one of them gives back waits for the GPU, and so for what the other has there.
  if (device_calls_) device_calls_->give_up();
  nccl_calls_->give_up();
  nccl_watch_.reset();
  nccl_calls_.reset();
}

}  // namespace ringreduce

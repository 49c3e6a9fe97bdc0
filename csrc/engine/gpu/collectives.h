// The communicator's collectives of arrays in GPU memory: by kernels that reach their peers' memory
// (on_gpu.cpp), or over NCCL (on_nccl.cpp). All of a rank's arrays are of one GPU. What is launched waits for
// other ranks on the GPU, on which the host has no say: a thread looks after it, and ends it where it would
// wait for ever.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/planning/call.h"
#include "transport/interface/transport.h"

namespace ringreduce {

class Communicator;
class DeviceCalls;
class DeviceWork;
class GpuCalls;
class NcclCalls;
class Watch;

class OnGpu {
 public:
  explicit OnGpu(Communicator& group);
  ~OnGpu();
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

  // As the communicator has them.
  void prepare(int device);
  void enqueue(const Call& call, std::optional<void*> stream);
  std::shared_ptr<DeviceWork> enqueue_beside(const Call& call, std::optional<void*> stream);
  void enroll(int device, void* memory, std::size_t bytes);
  void withdraw(int device, void* memory);
  void* own_stream();
  std::size_t footprint();

  // Waits for what was launched, and tells the other ranks that this one needs them no more.
  void finish();
  // What is under way ends.
  void leave();
  // Of a forked child nothing can be given back: the GPU knows the parent only.
  void disown();

 private:
  // As a watch has seen it.
  struct Progress {
    Backoff backoff;
    Clock::time_point since;
    std::uint64_t ended = 0;
    std::optional<std::uint64_t> disagreement;  // the number of the call, seen once
  };

  void in_order(const std::function<void()>& launch);
  std::unique_ptr<Watch> watch(GpuCalls& calls, std::function<void(Progress&)> look);
  void look_for_what_is_stuck(GpuCalls& calls, Progress& progress, const char* what);
  void check_closed() const;
  void wait_for(GpuCalls& calls);

  void check_that_gpus_serve() const;
  DeviceCalls& device_calls(int device);
  void enqueue_by_events(DeviceCalls& calls, const Call& call, void* stream);

  bool schedules_use_nccl();
  std::vector<std::string> agree_on_transport();
  std::shared_ptr<NcclCalls> nccl_calls(int device);
  std::shared_ptr<NcclCalls> nccl_calls_in_use();
  void wait_for_nccl();
  void enqueue_over_nccl(const Call& call, std::optional<void*> stream);
  template <typename Step>
  void guarded_from_nccl(Step step);
  static void keep_order(void* event, int device, void* stream);
  void look_at_nccl(Progress& progress);
  void finish_nccl();
  void leave_nccl();

  Communicator& group_;
  std::mutex mutex_, events_mutex_;
  std::unique_ptr<DeviceCalls> device_calls_;
  std::unique_ptr<Watch> device_watch_;
  std::atomic<std::uint64_t> last_launched_{0};  // the number of that call

  std::optional<bool> schedules_use_nccl_;  // as all ranks have agreed
  std::shared_ptr<NcclCalls> nccl_calls_;   // who calls it keeps it, whoever leaves meanwhile
  std::unique_ptr<Watch> nccl_watch_;
};

}  // namespace ringreduce

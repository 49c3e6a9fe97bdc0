// Collectives of arrays in GPU memory: launches this rank's kernel for each, on the caller's stream, and goes
// on. Which calls there are, and how a group fails, is the communicator's business.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/gpu/events/runner.h"
#include "engine/gpu/kernels/boxes.h"
#include "engine/gpu/kernels/programs.h"
#include "engine/gpu/runner.h"
#include "engine/planning/call.h"
#include "engine/planning/plan.h"

namespace ringreduce {

class DeviceCalls : public GpuCalls {
 public:
  // A collective, as DeviceBoxes is.
  DeviceCalls(int rank, int world, int device, bool reproducible, const Exchange& exchange);
  // What is under way has ended, or was given up.
  ~DeviceCalls() override;
  DeviceCalls(const DeviceCalls&) = delete;
  DeviceCalls& operator=(const DeviceCalls&) = delete;

  int device() const { return device_; }
  std::size_t footprint() const;  // bytes of device memory
  // One of this rank's own, in no order with others.
  void* stream() const { return own_stream_.get(); }
  // Throws InvalidArgument where another rank of this process launches on the same one: there a kernel would
  // wait for one behind it.
  void check_stream(void* stream);

  // As Planner::plan. Throws InvalidArgument for what GPUs do not serve.
  const Plan& plan(const Call& call);
  // Launches what was planned; `contract` stands for this call and all before it. The call's arrays are the
  // device's, and kernels use them until the stream is through.
  void launch(const Call& call, const Plan& plan, std::uint64_t contract, void* stream);

  // Not null: kernels must not wait for each other here, and these serve instead of launch().
  EventCalls* by_events() const { return by_events_.get(); }

  std::uint64_t begun() override { return heard(report_->begun); }
  std::uint64_t ended() override { return heard(report_->done); }
  // The peer that made another call, or -1.
  int differing() const { return static_cast<int>(heard(report_->differs)) - 1; }
  // The event of the last call, or null: for what must not overtake it.
  void* last() const { return launched_ ? event_.get() : nullptr; }
  bool is_idle() override;
  void give_up() override;

 private:
  // Hand-tuned kernels, and the one that walks schedules.
  enum class Kernel : std::uint8_t { one_shot, direct, interpreter };

  static std::uint64_t heard(const std::uint64_t& word) { return __atomic_load_n(&word, __ATOMIC_ACQUIRE); }
  Kernel kernel_for(const Call& call) const;
  std::size_t slice_bytes(const Call& call) const;
  device::Errand errand_for(const Call& call, const Plan& plan, std::uint64_t contract) const;
  device::Share share_of(const Call& call) const;
  void wait_until_idle();

  const CudaLibrary& cuda_;
  const int rank_, world_, device_;
  CudaHandle uploads_, own_stream_;
  CudaHandle event_;  // of the last call
  DeviceBoxes boxes_;
  DevicePrograms programs_;
  Planner planner_;
  DeviceMemory report_memory_;
  device::Report* const report_;
  void* last_stream_ = nullptr;
  bool launched_ = false;
  std::vector<void*> checked_streams_;
  std::unique_ptr<EventCalls> by_events_;
};

}  // namespace ringreduce

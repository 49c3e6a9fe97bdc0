// Collectives of arrays in GPU memory over NCCL: NCCL's own, or schedules of ours whose messages it carries.
// What DeviceCalls is where kernels reach their peers' memory.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/gpu/kernels/cuda/errand.h"
#include "engine/gpu/runner.h"
#include "engine/planning/call.h"
#include "engine/planning/plan.h"
#include "transport/device/memory.h"
#include "transport/nccl/group.h"

namespace ringreduce {

class NcclCalls : public GpuCalls {
 public:
  using Tick = NcclGroup::Tick;

  // A collective, as NcclGroup is.
  NcclCalls(int rank, int world, int device, bool reproducible, const std::vector<int>& hosts,
            Clock::duration timeout, const Exchange& exchange, const Tick& tick);
  // What is under way has ended, or was given up.
  ~NcclCalls() override;
  NcclCalls(const NcclCalls&) = delete;
  NcclCalls& operator=(const NcclCalls&) = delete;

  int device() const { return device_; }
  std::size_t footprint() const;  // bytes of device memory, without NCCL's
  // One of this rank's own, in no order with others.
  void* stream() const { return own_stream_->get(); }

  // As Planner::plan. Throws InvalidArgument for what is not served.
  const Plan& plan(const Call& call);
  // Knows what the other one knows.
  void follow(const Planner& planner) { planner_.follow(planner); }
  // Puts on the stream what was planned. Waits for other ranks only where NCCL connects them first; `tick` is
  // called meanwhile.
  void launch(const Call& call, const Plan& plan, void* stream, const Tick& tick);

  void enroll(void* memory, std::size_t bytes, const Tick& tick);
  void withdraw(void* memory, const Tick& tick);

  // Of those in graphs; others have begun when they were launched.
  std::uint64_t begun() override;
  std::uint64_t ended() override;
  bool is_idle() override { return begun() == ended(); }
  // What NCCL says has gone wrong, or nothing.
  std::string failure() { return group_->failure(); }
  // The event of the last call, or null: for what must not overtake it.
  void* last() const { return last_; }
  // Leaves the group as one should, idle.
  void finish(Clock::duration timeout, const Tick& tick);
  void give_up() override { group_->abort(); }

 private:
  struct Launched {
    CudaHandle event;
    std::uint64_t number = 0;  // of the last call that it stands for
  };

  void prepare();
  bool comes_to_rest() const;
  void check_sources(const Call& call) const;
  char* make_room(std::size_t bytes);
  void count_in_graph(std::uint64_t* counter, void* stream);
  void follow(void* stream);
  void note_launched(void* stream);

  const CudaLibrary& cuda_;
  const int rank_, world_, device_;
  const bool reproducible_;
  std::unique_ptr<NcclGroup> group_;
  Planner planner_;
  std::optional<CudaHandle> own_stream_;
  std::unique_ptr<DeviceMemory> report_memory_;
  device::Report* report_ = nullptr;  // of calls in graphs; written on streams
  std::uint64_t* one_ = nullptr;
  // Temporary memory of calls, which come one after the other: the last one serves, graphs may use any.
  std::vector<std::unique_ptr<DeviceMemory>> rooms_;
  bool captured_ = false;

  std::mutex events_mutex_;
  std::deque<Launched> under_way_;
  std::vector<CudaHandle> free_events_;
  std::uint64_t launched_ = 0, over_ = 0;
  void* last_ = nullptr;
  void* last_stream_ = nullptr;
};

}  // namespace ringreduce

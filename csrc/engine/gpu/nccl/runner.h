// Runs collectives over NCCL: NCCL's own, or our schedules with NCCL's messages.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/gpu/kernels/cuda/errand.h"
#include "engine/gpu/nccl/contract.h"
#include "engine/gpu/runner.h"
#include "transport/device/memory.h"
#include "transport/nccl/group.h"

namespace ringreduce {

class NcclRunner : public Runner {
 public:
  // A collective, like NcclGroup's constructor. `tick` is called while it waits for other ranks, now and
  // later.
  NcclRunner(int rank, int world, int device, bool reproducible, const std::vector<int>& hosts,
             Clock::duration timeout, const Exchange& exchange, Tick tick);
  ~NcclRunner() override;

  const char* what() const override { return "a collective over NCCL"; }
  std::size_t footprint() const override;  // without NCCL's
  const Plan& plan(Planner& planner, const Call& call, const Launch& launch) override;
  // Waits for other ranks only if NCCL must connect them first.
  void launch(const Call& call, const Plan& plan, const Launch& launch) override;

  // Those in graphs; others begin when they are launched.
  std::uint64_t begun() override;
  std::uint64_t ended() override;
  void check() override;
  bool has_disagreed() override { return contract_->is_broken(); }
  void give_up() override;
  void finish(Clock::duration patience, const Tick& tick) override;

  void register_memory(void* memory, std::size_t bytes) override;
  void deregister_memory(void* memory) override;

 private:
  struct Launched {
    CudaHandle event;
    std::uint64_t number = 0;  // of the last call that it covers
  };

  bool comes_to_rest() const;
  void check_sources(const Call& call) const;
  char* make_room(std::size_t bytes);
  void count_in_graph(std::uint64_t* counter, void* stream);
  void note_launched(void* stream);

  const bool reproducible_;
  const Tick tick_;
  const Target target_;
  std::unique_ptr<NcclGroup> group_;
  std::unique_ptr<NcclContract> contract_;
  std::unique_ptr<DeviceMemory> report_memory_;
  device::Report* report_ = nullptr;  // of calls in graphs; written on streams
  std::uint64_t* one_ = nullptr;
  // Temporary memory of calls, which run one after the other. The last one is current, graphs may use any.
  std::vector<std::unique_ptr<DeviceMemory>> rooms_;
  bool captured_ = false;

  std::mutex events_mutex_;
  std::deque<Launched> under_way_;
  std::vector<CudaHandle> free_events_;
  std::uint64_t launched_ = 0, over_ = 0;
};

}  // namespace ringreduce

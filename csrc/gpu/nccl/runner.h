// Runs collectives over NCCL: NCCL's own, or our schedules with NCCL's messages. If it is prepared for that,
// messages between two ranks are NCCL's, too, and keep the order of a rank's calls.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/device/options.h"
#include "gpu/device/memory.h"
#include "gpu/kernels/cuda/errand.h"
#include "gpu/libnccl/group.h"
#include "gpu/nccl/contract.h"
#include "gpu/nccl/labels.h"
#include "gpu/runner/messenger.h"

namespace ringreduce {

class NcclRunner : public Runner, public Messenger {
 public:
  // A collective, like NcclGroup's constructor. `messages`: those between two ranks are carried. `tick` is
  // called while it waits for other ranks, now and later.
  NcclRunner(int rank, int world, int device, bool reproducible, bool messages, const GpuOptions& options,
             const std::vector<int>& hosts, Clock::duration timeout, const Exchange& exchange, Tick tick);
  ~NcclRunner() override;

  const char* what() const override { return "a collective over NCCL"; }
  std::size_t footprint() const override;  // without NCCL's
  const Plan& plan(Planner& planner, const Call& call, const Launch& launch) override;
  // Waits for other ranks only if NCCL must connect them first.
  void launch(const Call& call, const Plan& plan, const Launch& launch) override;

  Messenger* messenger() override { return labels_ ? this : nullptr; }
  std::optional<Transfer> waiting_message() override;
  void launch(std::span<const Transfer> transfers, const Launch& launch) override;
  void* stream_for(const Transfer& /*transfer*/) override { return stream_.get(); }

  // Those in graphs; others begin when they are launched.
  std::uint64_t begun() override;
  std::uint64_t ended() override;
  void check() override;
  bool has_disagreed() override { return contract_->is_broken(); }
  void give_up() override;
  void finish(Clock::duration patience, const Tick& tick) override;

  void register_memory(void* memory, std::size_t bytes, const Exchange& exchange) override;
  void deregister_memory(void* memory) override;

 private:
  struct Launched {
    CudaHandle event;
    std::uint64_t number = 0;           // of the last call that it covers
    std::optional<Transfer> message{};  // if that is one
  };

  bool comes_to_rest() const;
  void check_sources(const Call& call) const;
  void check_own(std::span<const Transfer> transfers) const;
  char* make_room(std::size_t bytes);
  void count_in_graph(std::uint64_t* counter, void* stream);
  void follow_last(void* stream) const;
  void note_launched(void* stream, const Transfer* message);

  const bool reproducible_;
  const Tick tick_;
  const Target target_;
  std::unique_ptr<NcclGroup> group_;
  std::unique_ptr<NcclContract> contract_;
  std::unique_ptr<NcclLabels> labels_;  // null: no messages are carried
  CudaHandle stream_;                   // of asynchronous messages
  std::unique_ptr<DeviceMemory> report_memory_;
  device::Report* report_ = nullptr;  // of calls in graphs; written on streams
  std::uint64_t* one_ = nullptr;
  // Temporary memory of calls, which run one after the other. The last one is current, graphs may use any.
  std::vector<std::unique_ptr<DeviceMemory>> rooms_;
  bool captured_ = false;
  std::uint64_t collectives_ = 0;  // but for those in graphs
  void* last_stream_ = nullptr;

  std::mutex events_mutex_;
  std::deque<Launched> under_way_;
  std::vector<CudaHandle> free_events_;
  std::uint64_t launched_ = 0, over_ = 0;
};

}  // namespace ringreduce

// Runs collectives with kernels that access their peers' memory and wait for each other there: one per call
// and rank.
#pragma once

#include <memory>

#include "gpu/copy_engine/copy_engine.h"
#include "gpu/kernels/boxes.h"
#include "gpu/kernels/buffers.h"
#include "gpu/kernels/messenger.h"
#include "gpu/kernels/programs.h"
#include "gpu/runner/runner.h"

namespace ringreduce {

class KernelRunner : public Runner {
 public:
  // `buffers`: for ranks that are processes and may reach each other's arrays. `copy_engine`: for what needs
  // no kernels; may be null.
  KernelRunner(int rank, int world, int device, int priority, std::unique_ptr<DeviceBoxes> boxes,
               std::unique_ptr<Buffers> buffers, std::unique_ptr<CopyEngine> copy_engine);
  ~KernelRunner() override;

  const char* what() const override { return "a collective on its GPU"; }
  std::size_t footprint() const override { return boxes_->bytes() + programs_.footprint(); }
  const Plan& plan(Planner& planner, const Call& call, const Launch& launch) override;
  void launch(const Call& call, const Plan& plan, const Launch& launch) override;
  std::uint64_t begun() override { return collectives_begun() + (messenger_ ? messenger_->begun() : 0); }
  std::uint64_t ended() override { return collectives_ended() + (messenger_ ? messenger_->ended() : 0); }
  bool was_direct() const override {
    return heard(report_->done[0]) != 0 && heard(report_->direct) == heard(report_->done[0]);
  }
  bool is_idle() override { return Runner::is_idle() && (!messenger_ || messenger_->is_idle()); }
  Messenger* messenger() override { return messenger_.get(); }
  std::optional<Transfer> waiting_message() override;
  void check() override;
  void give_up() override;

  void register_memory(void* memory, std::size_t bytes, const Exchange& exchange) override;
  void deregister_memory(void* memory) override;

 private:
  std::uint64_t collectives_begun() const {
    return heard(report_->begun) + (copy_engine_ ? copy_engine_->begun() : 0);
  }
  std::uint64_t collectives_ended() const;
  bool is_short(const device::Share& share) const;
  bool is_one_shot(const device::Share& share) const;
  device::Duty duty_for(const Call& call, bool is_forced) const;
  device::Errand errand_for(const Call& call, const Plan& plan, std::uint64_t contract) const;
  device::Share share_of(const Call& call) const;
  device::Share flagged_share(const Call& call) const;
  void admit_peers(const void* memory, std::size_t bytes) const;
  void place_arrays(const Call& call, bool captured, device::Errand& errand) const;
  void wait_until_idle();

  const CudaHandle uploads_;
  CudaHandle event_, mark_;  // after the last call; and after an earlier one
  const std::unique_ptr<DeviceBoxes> boxes_;
  const std::unique_ptr<Buffers> buffers_;
  const std::unique_ptr<CopyEngine> copy_engine_;
  DevicePrograms programs_;
  const Target target_;
  DeviceMemory report_memory_;
  device::Report* const report_;
  const std::unique_ptr<KernelMessenger> messenger_;  // null: there are too few blocks for one
  // Of the last plan.
  bool is_by_copy_engine_ = false;
  device::Duty duty_ = device::Duty::interpret;
  DevicePrograms::Place place_;
};

}  // namespace ringreduce

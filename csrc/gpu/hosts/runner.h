// Runs collectives between GPUs whose kernels do not all reach each other, or are too many, and without NCCL:
// through memory on the hosts, and the group's own transport.
#pragma once

#include "gpu/hosts/staging.h"
#include "gpu/runner/runner.h"

namespace ringreduce {

class HostsRunner : public Runner {
 public:
  // A collective. `another` makes a group of the same ranks.
  HostsRunner(int rank, int world, int device, const Exchange& exchange,
              const std::function<std::unique_ptr<Communicator>()>& another);
  ~HostsRunner() override;

  const char* what() const override { return "a collective between GPUs of several hosts"; }
  const Plan& plan(Planner& planner, const Call& call, const Launch& launch) override;
  void launch(const Call& call, const Plan& plan, const Launch& launch) override;

  std::uint64_t begun() override { return heard(*begun_); }
  std::uint64_t ended() override { return heard(*ended_); }
  void check() override { staging_->check(); }
  void give_up() override { staging_->give_up(); }
  void finish(Clock::duration /*patience*/, const Tick& /*tick*/) override { staging_->finish(); }

 private:
  const CudaHandle event_;  // after the last call
  DeviceMemory words_;
  std::uint64_t *const begun_, *const ended_;
  std::uint64_t launched_ = 0;
  std::unique_ptr<Staging> staging_;
  int algorithm_ = automatic;  // of the last plan
};

}  // namespace ringreduce

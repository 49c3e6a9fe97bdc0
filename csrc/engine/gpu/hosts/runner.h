// Runs collectives between GPUs whose kernels do not all reach each other, or are too many, and without NCCL:
// through memory on the hosts, and the group's own transport. If each of several hosts has as many ranks,
// large calls have two levels. Kernels work inside the hosts, so that every rank brings only its share to the
// host and to the network.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/gpu/hosts/staging.h"
#include "engine/gpu/runner.h"

namespace ringreduce {

class HostsRunner : public Runner {
 public:
  // A group of the ranks that pass the same number, in rank order; a collective of all ranks.
  using Split = std::function<std::unique_ptr<Communicator>(int color)>;
  // A collective. `hosts`: the number of each rank's host. `say` logs.
  HostsRunner(int rank, int world, int device, bool reproducible, const std::vector<int>& hosts,
              const Split& split, const Exchange& exchange,
              const std::function<void(const std::string&)>& say);
  ~HostsRunner() override;

  const char* what() const override { return "a collective between GPUs of several hosts"; }
  std::size_t footprint() const override;
  const Plan& plan(Planner& planner, const Call& call, const Launch& launch) override;
  void launch(const Call& call, const Plan& plan, const Launch& launch) override;

  std::uint64_t begun() override { return heard(*begun_); }
  std::uint64_t ended() override { return heard(*ended_); }
  void check() override;
  void give_up() override;
  void finish(Clock::duration patience, const Tick& tick) override;

 private:
  // Where this rank is, if all hosts have as many ranks: of two hosts, rank 5 is number 1 of its host's four.
  struct Grid {
    int host = 0, place = 0;
    std::vector<int> inside, across;  // the ranks of this host, and those of all hosts with this place
    std::vector<int> place_of;        // every rank
    bool in_order = true;             // a host's ranks follow each other
    std::size_t hosts() const { return across.size(); }
    std::size_t each() const { return inside.size(); }
  };

  void check_queues(const Exchange& exchange) const;
  static std::optional<Grid> grid_of(const std::vector<int>& hosts, int rank);
  bool takes_two_levels(const Call& call, const Planner& planner) const;
  void all_reduce(const Call& call, void* stream);
  void reduce_scatter(const Call& call, void* stream);
  void all_gather(const Call& call, void* stream);
  void broadcast(const Call& call, void* stream);
  void launch_two_levels(const Call& call, void* stream);
  void divide(const Call& call, void* values, std::size_t count, void* stream) const;
  char* room_for(std::size_t bytes);

  const bool reproducible_;
  const CudaHandle event_;  // after the last call
  DeviceMemory words_;
  std::uint64_t *const begun_, *const ended_;
  std::uint64_t launched_ = 0;
  std::unique_ptr<Staging> all_;  // of all ranks
  // Of two levels; else there are none.
  std::optional<Grid> grid_;
  std::unique_ptr<Subgroup> inside_;
  std::unique_ptr<Staging> across_;
  std::vector<std::unique_ptr<DeviceMemory>> rooms_;  // the last one is current, streams may use any
  // Of the last plan.
  bool two_levels_ = false;
  int algorithm_ = automatic;
};

}  // namespace ringreduce

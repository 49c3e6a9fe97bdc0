// Runs collectives where kernels must not wait for each other, because not all of them would run at the same
// time: of threads of one process, whose streams wait for each other's events. An event can be waited for
// only when it was recorded, so the ranks meet on the host, twice in each call. Every rank reads what it
// needs of the others' arrays, and writes all that is to have its share.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "engine/gpu/kernels/cuda/errand.h"
#include "engine/gpu/runner.h"
#include "transport/device/memory.h"

namespace ringreduce {

class EventRunner : public Runner {
 public:
  // On the current device.
  EventRunner(int rank, int world, int device, const std::vector<int>& devices_of_peers);
  ~EventRunner() override;

  const char* what() const override { return "a collective on its GPU"; }
  const Plan& plan(Planner& planner, const Call& call, const Launch& launch) override;
  void launch(const Call& call, const Plan& plan, const Launch& launch) override;
  bool meets(const Call& call, const Launch& launch, Call& meeting) override;

 private:
  // Of one rank: that its arrays are as they were given, and that it is done with all of them.
  struct Events {
    CudaHandle ready, done;
  };
  // What the others must know of a rank's arrays.
  struct Arrays {
    const char* input;
    char* output;
    std::uint64_t events;  // the number of its events, to be shared between the two meetings
    std::array<std::uint64_t, device::most_ranks> blocks;  // of the input, for each rank: where they begin
  };

  const void* input_for_peers(const Call& call, void* stream);
  void combine_and_copy(const Call& call, void* stream) const;
  void combine(const Call& call, void* stream) const;

  // Of any rank of this process; null if it is gone: ranks may close between the meetings and after them.
  static std::shared_ptr<const Events> events_of(std::uint64_t number);

  const std::shared_ptr<const Events> events_;
  const std::uint64_t number_;
  const CudaHandle event_;  // that all are done
  const std::vector<int> devices_of_peers_;
  // Of the call that goes on.
  int meetings_ = 0;
  Arrays own_{};
  std::vector<Arrays> arrays_;
  std::vector<std::shared_ptr<const Events>> all_events_;
  std::unique_ptr<DeviceMemory> kept_;  // an input that peers read while this rank writes there
};

}  // namespace ringreduce

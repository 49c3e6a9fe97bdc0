// Runs collectives if kernels must not wait for each other because not all of them would run at the same
// time. The ranks are threads of one process, whose streams wait for each other's events. An event can be
// waited for only after it was recorded, so the ranks meet on the host twice in each call. Every rank reads
// what it needs of the others' arrays, and writes to all outputs that need its share.
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
  // One rank's events: its arrays are ready, and it has finished with all arrays.
  struct Events {
    CudaHandle ready, done;
  };
  // A rank's arrays, as the others must know them.
  struct Arrays {
    const char* input;
    char* output;
    std::uint64_t events;  // the number of its events, shared between the two meetings
    std::array<std::uint64_t, device::most_ranks> blocks;  // of the input: where each rank's block begins
  };

  const void* input_for_peers(const Call& call, void* stream);
  char* room_to_keep(std::size_t bytes);
  void combine_and_copy(const Call& call, void* stream) const;
  void combine(const Call& call, void* stream) const;

  // coded.cpp: if messages are encoded. Peers then read a rank's input in that form, block by block.
  struct Coding;
  const void* encoded_input(const Call& call, void* stream);
  void combine_coded(const Coding& coding) const;
  void combine_and_copy_coded(const Call& call, void* stream) const;

  // Of any rank of this process; null if it is gone, because ranks may close between the meetings and after
  // them.
  static std::shared_ptr<const Events> events_of(std::uint64_t number);

  const std::shared_ptr<const Events> events_;
  const std::uint64_t number_;
  const CudaHandle event_;  // all have finished
  const std::vector<int> devices_of_peers_;
  // Of the current call.
  int meetings_ = 0;
  Arrays own_{};
  std::vector<Arrays> arrays_;
  std::vector<std::shared_ptr<const Events>> all_events_;
  const char* exact_ = nullptr;         // of a coded call: this rank's values
  char* result_ = nullptr;              // and room for float32
  std::unique_ptr<DeviceMemory> kept_;  // what peers read instead of the input
};

}  // namespace ringreduce

// Collectives of arrays in GPU memory where kernels must not wait for each other, because not all of them
// would run at the same time: threads of one process, whose streams wait for each other's events. An event
// can be waited for only when it was recorded, so the ranks meet on the host, twice in each call.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "engine/gpu/kernels/cuda/errand.h"
#include "engine/planning/call.h"
#include "engine/planning/plan.h"
#include "transport/device/memory.h"
#include "transport/interface/transport.h"

namespace ringreduce {

class EventCalls {
 public:
  EventCalls(const CudaLibrary& cuda, int device, int rank, int world);
  // Waits for what this rank has launched.
  ~EventCalls();
  EventCalls(const EventCalls&) = delete;
  EventCalls& operator=(const EventCalls&) = delete;

  // All ranks of the process call it, each with its own stream (or the same). Every rank reads what it needs
  // of the others' arrays, and writes all that is to have its share. Throws InvalidArgument for a stream that
  // is captured, and what the exchange throws.
  void run(const Call& call, const Plan& plan, void* stream, const Exchange& exchange);

 private:
  // Of one rank: that its arrays are as they were given, and that it is done with all of them.
  struct Events {
    CudaHandle ready, done;
  };
  // What the others must know of a rank's arrays.
  struct Arrays {
    const char* input;
    char* output;
    // To be shared between the two meetings: the rank may close after the second one.
    const std::shared_ptr<const Events>* events;
    std::array<std::uint64_t, device::most_ranks> blocks;  // of the input, for each rank: where they begin
  };

  const void* input_for_peers(const Call& call, void* stream);
  std::vector<Arrays> meet(const Arrays& own, const Exchange& exchange) const;
  void launch(const Call& call, const Plan& plan, const std::vector<Arrays>& arrays, void* stream) const;
  void combine(const Call& call, const Plan& plan, const std::vector<Arrays>& arrays, void* stream) const;
  void copy(char* to, const char* from, std::size_t bytes, void* stream) const;

  const CudaLibrary& cuda_;
  const int device_, rank_, world_;
  const std::shared_ptr<const Events> events_;
  bool launched_ = false;
  std::unique_ptr<DeviceMemory> kept_;  // an input that peers read while this rank writes there
};

}  // namespace ringreduce

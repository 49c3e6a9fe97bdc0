// Sends and receives messages between two ranks with kernels, on the streams of the callers. Those of a pair
// (a peer and a direction) follow each other in the order of the calls. Those of different pairs wait neither
// for each other nor for collectives: each pair has thread blocks of its own
// (gpu/kernels/cuda/messages.h).
#pragma once

#include <array>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "gpu/kernels/boxes.h"
#include "gpu/runner/messenger.h"

namespace ringreduce {

class KernelMessenger : public Messenger {
 public:
  // `boxes` have lanes. On the current device.
  KernelMessenger(int rank, int world, int device, int priority, const DeviceBoxes& boxes,
                  device::Report& report);

  void launch(std::span<const Transfer> transfers, const Launch& launch) override;
  void* stream_for(const Transfer& transfer) override;

  // As in Runner.
  std::uint64_t begun() const { return sum(report_.messages_begun); }
  std::uint64_t ended() const { return sum(report_.messages_ended); }
  bool is_idle();
  void check();
  // A message that has begun and not ended; its peer has not come. From any thread.
  std::optional<Transfer> waiting();
  // Lets the stream wait for all that was launched.
  void let_wait(void* stream);

 private:
  struct Pair {
    CudaHandle event;  // after its last message, if there is a stream
    std::optional<void*> stream;
    CudaHandle own_stream;
    Transfer last;
  };
  using Counts = std::uint64_t[2][device::most_ranks][device::most_lanes];

  Pair& pair_of(const Transfer& transfer) { return pairs_[transfer.sends ? 1 : 0][transfer.peer]; }
  void launch_some(std::span<const Transfer> sorted, const Launch& launch);
  std::uint64_t sum(const Counts& counts) const;

  const CudaLibrary& cuda_;
  const int rank_, world_, device_, priority_;
  const DeviceBoxes& boxes_;
  device::Report& report_;
  std::mutex mutex_;
  std::array<std::vector<Pair>, 2> pairs_;  // receives and sends, by peer
};

}  // namespace ringreduce

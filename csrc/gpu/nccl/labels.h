// Compares the two ends of messages over NCCL, whose messages do not describe themselves. Before some
// messages of a pair, a word that describes the sender's call is sent on the same stream. The receiver's host
// sees later whether it is what its own call says.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>
#include <vector>

#include "engine/planning/call.h"
#include "gpu/device/memory.h"
#include "gpu/libnccl/group.h"

namespace ringreduce {

class NcclLabels {
 public:
  // On the current device.
  NcclLabels(const CudaLibrary& cuda, int rank, int world, int device);

  // Labels messages that are launched next, together. With the group's lock held. If very many labels are in
  // flight, it waits for the oldest. Throws InvalidArgument for more messages than there is room for.
  void exchange(NcclGroup& group, std::span<const Transfer> transfers, void* stream,
                const NcclGroup::Tick& tick);
  // Throws Failure if a message did not match its recv.
  void check();
  std::size_t bytes() const { return memory_.bytes(); }

 private:
  struct Expected {
    std::uint64_t number;
    Transfer receive;
  };
  struct Due {
    std::uint64_t number;
    const Transfer* transfer;
  };
  static constexpr std::size_t most = 1024;

  std::vector<Due> take_due(std::span<const Transfer> transfers);
  void make_room(const NcclGroup::Tick& tick);
  bool hears_of_the_oldest();

  const CudaLibrary& cuda_;
  const int rank_;
  const DeviceMemory memory_, on_host_;
  std::uint64_t *const there_, *const heard_;
  std::array<std::vector<std::uint64_t>, 2> messages_;  // so far: receives and sends, by peer
  std::uint64_t next_ = 0;
  std::mutex mutex_;  // for what follows
  std::deque<Expected> under_way_;
};

}  // namespace ringreduce

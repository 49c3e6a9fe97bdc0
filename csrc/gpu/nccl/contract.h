// Compares the ranks' calls over NCCL, whose messages do not identify their call. Some calls carry their
// contract, which stands for all calls before it as well, in an all-reduce of its own: two words, before the
// call, on the same stream. The host sees later whether all ranks' were equal.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>

#include "gpu/device/memory.h"
#include "gpu/libnccl/group.h"

namespace ringreduce {

class NcclContract {
 public:
  // On the current device.
  NcclContract(const CudaLibrary& cuda, int device);

  // Whether this call, of those that are not in graphs, must carry its contract. The same on all ranks.
  static bool is_due(std::uint64_t call);
  // Compares a call that is launched next, the same on all ranks. With the group's lock held. If very many
  // comparisons are in flight, it waits for one.
  void pledge(NcclGroup& group, std::uint64_t contract, void* stream, const NcclGroup::Tick& tick);
  // Whether some rank has called something else.
  bool is_broken();
  std::size_t bytes() const { return memory_.bytes(); }

 private:
  struct Words {
    std::uint64_t all, inverse;  // the largest of all ranks' contracts, and of their inverses; 0: not yet
  };
  static constexpr std::size_t most = 64;

  bool hears_of_the_oldest();

  const CudaLibrary& cuda_;
  const DeviceMemory memory_, on_host_;
  Words *const there_, *const given_, *const heard_;
  std::mutex mutex_;  // for what follows
  std::deque<std::size_t> under_way_;
  std::size_t next_ = 0;
  bool is_broken_ = false;
};

}  // namespace ringreduce

// Memory that the GPUs of a group's ranks share: for each rank a part that all of them reach, through which
// their kernels meet (gpu/kernels/cuda/mailboxes.h). Processes of one host share it through CUDA's IPC
// handles, threads of one process directly, and GPUs through peer access.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/device/options.h"
#include "gpu/device/memory.h"
#include "gpu/kernels/cuda/errand.h"
#include "transport/interface/errors.h"
#include "transport/interface/exchange.h"
#include "transport/interface/transport.h"

namespace ringreduce {

// Not even one thread block of each rank would run beside those that groups have claimed. `apart`: each rank
// has a GPU of its own.
struct NoRoom : Error {
  NoRoom(const std::string& what, bool apart) : Error(what), apart(apart) {}
  bool apart;
};

class DeviceBoxes {
 public:
  // A collective of at most device::most_ranks ranks, each with a device of its own or a shared one. Throws
  // Error, on all ranks, if a rank has no GPU or its GPU cannot reach another's, or if streams of ranks that
  // share a GPU share queues, and NoRoom. `messages`: if there are enough blocks, some are for messages
  // between two ranks; the same on all ranks.
  DeviceBoxes(const CudaLibrary& cuda, int device, int rank, int world, const Exchange& exchange,
              void* stream, bool messages, const GpuOptions& options);
  ~DeviceBoxes();
  // Tells the ranks of other processes that this rank's kernels no longer write to their boxes. This rank's
  // boxes are not reused before all of those have left, however the group has ended, because their kernels
  // may be slow. If one leaves silently, because its process died or its GPU failed, they are never released.
  void leave(void* stream) const;
  DeviceBoxes(const DeviceBoxes&) = delete;
  DeviceBoxes& operator=(const DeviceBoxes&) = delete;

  const device::Boxes& layout() const { return layout_; }
  // Whether all ranks are threads of this process, and reach all of each other's memory.
  bool one_process() const { return others_.empty(); }
  // Whether each is a process of its own.
  bool own_processes() const { return static_cast<int>(others_.size()) == world_ - 1; }
  // Whether some rank's options have it.
  bool wants_copy_engine() const { return wants_copy_engine_; }
  // The other devices of ranks in this process.
  const std::vector<int>& devices_of_peers() const { return devices_of_peers_; }
  std::size_t bytes() const { return layout_.bytes(); }
  char* memory(int rank) const { return memories_[rank]; }
  // A stream of this process belongs to the first rank of this group that launches on it, until that closes.
  // Throws InvalidArgument if it is another: one kernel would wait for the other one behind it.
  void claim(void* stream) const;

 private:
  struct Gpu;
  using Claimed = std::pair<int, int>;  // a device, and the thread blocks that may run there
  struct Room;
  // Thread blocks for each of so many ranks that share a GPU.
  static int part_of(const Gpu& gpu, int ranks);
  Gpu introduce(bool messages, const GpuOptions& options);
  void share_blocks(const std::vector<Gpu>& gpus);
  std::shared_ptr<DeviceMemory> take(void* stream) const;
  std::string offer(void* stream);
  void reach(int peer, const Gpu& gpu, const std::string& handle);

  const CudaLibrary& cuda_;
  const int device_, rank_, world_;
  std::shared_ptr<Claimed> claimed_;
  std::vector<int> devices_of_peers_;
  bool wants_copy_engine_ = false;
  device::Boxes layout_{};
  std::vector<char*> memories_;                      // of each rank's boxes
  std::vector<std::shared_ptr<DeviceMemory>> kept_;  // of this process
  std::vector<int> others_;                          // the ranks of other processes
};

}  // namespace ringreduce

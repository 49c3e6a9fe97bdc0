// What the GPUs of a group's ranks share: for each rank memory that all of them reach, through which their
// kernels meet (engine/gpu/kernels/cuda/mailboxes.h). Between processes of one host it is shared by CUDA's
// IPC handles, between threads of one process as it is, between GPUs by peer access.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/gpu/kernels/cuda/errand.h"
#include "transport/device/memory.h"
#include "transport/interface/exchange.h"
#include "transport/interface/transport.h"

namespace ringreduce {

class DeviceBoxes {
 public:
  // A collective: every rank of at most device::most_ranks calls it, with a device of its own or one that it
  // shares. Throws Error, on all ranks, where a rank has no GPU or its GPU cannot reach another's, and where
  // ranks of several processes share a GPU on which their thread blocks do not run at the same time.
  DeviceBoxes(const CudaLibrary& cuda, int device, int rank, int world, const Exchange& exchange,
              void* stream);
  ~DeviceBoxes();
  // Tells the ranks of other processes that no kernel of this rank writes to their boxes any more. Before all
  // of those have left, however the group has ended, nobody else gets this rank's: theirs may be slow. They
  // are never given back where one leaves without a word, because its process died or its GPU failed.
  void leave(void* stream) const;
  DeviceBoxes(const DeviceBoxes&) = delete;
  DeviceBoxes& operator=(const DeviceBoxes&) = delete;

  const device::Boxes& layout() const { return layout_; }
  // Whether all ranks are threads of this process, and reach all of each other's memory.
  bool one_process() const { return others_.empty(); }
  // Whether each is a process of its own.
  bool own_processes() const { return static_cast<int>(others_.size()) == world_ - 1; }
  // What other devices ranks of this process are on.
  const std::vector<int>& devices_of_peers() const { return devices_of_peers_; }
  // Whether kernels may wait for each other: a thread block at least of each rank runs on its GPU while those
  // of all others do. Otherwise there are no boxes.
  bool have_room() const { return layout_.blocks > 0; }
  std::size_t bytes() const { return layout_.bytes(); }
  char* memory(int rank) const { return memories_[rank]; }
  // Which rank of this group has a stream of this process's to itself: the first to claim it, until it
  // closes.
  int claim(void* stream) const;

 private:
  struct Gpu;
  using Claimed = std::pair<int, int>;  // a device, and how many thread blocks may run there
  Gpu introduce();
  int blocks_for_all(const std::vector<Gpu>& gpus);
  std::shared_ptr<DeviceMemory> take(void* stream) const;
  std::string offer(void* stream);
  void reach(int peer, const Gpu& gpu, const std::string& handle);

  const CudaLibrary& cuda_;
  const int device_, rank_, world_;
  std::shared_ptr<Claimed> claimed_;
  std::vector<int> devices_of_peers_;
  device::Boxes layout_{};
  std::vector<char*> memories_;                      // of each rank's boxes
  std::vector<std::shared_ptr<DeviceMemory>> kept_;  // of this process
  std::vector<int> others_;                          // the ranks of other processes
};

}  // namespace ringreduce

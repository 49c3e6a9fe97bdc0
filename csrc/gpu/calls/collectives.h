// The communicator's collectives of arrays in GPU memory. All of a rank's arrays are on one GPU, and its
// launches there run one after the other, on any runner and stream.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/calls/progress.h"
#include "engine/device/device.h"

namespace ringreduce {

class Buffers;
class Communicator;
class DeviceBoxes;
class GpuWork;
class Messenger;
class Runner;
class Watch;
struct Gpu;
struct Launch;
struct NoRoom;

class GpuCollectives : public DeviceCalls {
 public:
  // Makes another group of the same ranks; a collective.
  using Another = std::function<std::unique_ptr<Communicator>()>;
  GpuCollectives(Calls& calls, Progress& progress, Exchange exchange, Another another);
  ~GpuCollectives() override;
  GpuCollectives(const GpuCollectives&) = delete;
  GpuCollectives& operator=(const GpuCollectives&) = delete;

  void prepare(int device) override;
  void enqueue(const Call& call, std::optional<void*> stream) override;
  std::shared_ptr<DeviceWork> enqueue_beside(const Call& call, std::optional<void*> stream,
                                             Arrays arrays) override;
  bool carries_messages() override;
  void exchange(int device, std::span<const Transfer> transfers, std::optional<void*> stream) override;
  std::shared_ptr<DeviceWork> exchange_beside(int device, std::span<const Transfer> transfers,
                                              std::optional<void*> stream, Arrays arrays) override;
  void register_memory(int device, void* memory, std::size_t bytes) override;
  void deregister_memory(int device, void* memory) override;
  Holdings holdings() override;
  void finish() override;
  void leave() override;
  void disown() override;

 private:
  enum Path { reaching_peers, over_nccl, over_hosts };

  // Keeps the objects of a call alive, even if another thread leaves the group.
  struct Ready {
    std::shared_ptr<Gpu> gpu;
    Runner& runner;
  };
  enum class For { calls, calls_over_nccl, calls_and_messages };
  static For means_of(const Call& call);
  Ready ready(int device, For what);
  Path agree_on_path();
  std::string why_not_nccl();
  Path instead_of_kernels(const NoRoom& full);
  std::unique_ptr<Runner> meet(const Gpu& gpu, Path path, bool messages);
  std::unique_ptr<Buffers> reaching_arrays(const DeviceBoxes& boxes, int device);
  std::vector<std::shared_ptr<Runner>> runners();
  template <typename Step>
  void in_order(const Gpu& gpu, Step step);
  void launch(const Ready& on, const Call& call, Launch& launch);
  struct Carrying {
    std::shared_ptr<Gpu> gpu;
    Messenger& messenger;
  };
  Messenger* messenger() const;
  Carrying for_messages(int device);
  void launch(const Carrying& on, std::span<const Transfer> transfers, void* stream);
  bool is_idle();
  void tick();
  std::shared_ptr<GpuWork> work_beside(int device, std::optional<void*> stream, void* own, Arrays arrays);

  Calls& calls_;
  Progress& progress_;
  const Exchange exchange_;
  const Another another_;
  Turn meeting_;      // one at a time; its holder may read what follows
  std::mutex mutex_;  // writers hold this, too
  std::shared_ptr<Gpu> gpu_;
  std::optional<Path> path_of_schedules_;  // as agreed by all ranks
  bool may_use_nccl_ = true;               // unasked; the same
  std::set<const void*> registered_;       // memory
  std::unique_ptr<Watch> watch_;
  std::deque<std::pair<std::shared_ptr<GpuWork>, Arrays>> beside_;  // whose arrays are in use
  std::atomic<std::uint64_t> last_launched_{0};                     // the number of that call
  std::atomic<int> launching_{0};                                   // calls that are being launched
};

}  // namespace ringreduce

// The torch.distributed backend: c10d's interface of a process group, implemented with a Group.
//
// Functions that are virtual only in some supported versions of torch are declared without `override`. Types
// that only some versions have are in versions/.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "fronts/shared/group.h"
#include "fronts/torch/device.h"
#include "fronts/torch/tensor_calls.h"
#include "fronts/torch/tensors.h"
#include "fronts/torch/versions.h"
#include "fronts/torch/work.h"

namespace ringreduce::torch_backend {

using c10::intrusive_ptr;
using Milliseconds = std::chrono::milliseconds;
// Long enough for "never", and short enough to be added to a time.
inline Milliseconds bounded(Milliseconds timeout) {
  return std::min<Milliseconds>(timeout, std::chrono::hours(24 * 365 * 30));
}

struct Settings {
  Milliseconds timeout;
  GlobalRanks ranks;
  std::optional<bool> reproducible;  // none: the environment decides
  bool connected = true;             // if not, there are no ranks before reconfigure()
  GpuOptions gpu;
  std::string name = "ringreduce";  // that of the backend in whose place it stands
};

struct RingOptions : c10d::Backend::Options {
  RingOptions(const std::string& name, Milliseconds timeout, std::optional<bool> reproducible,
              const GpuOptions& gpu)
      : Options(name, timeout), reproducible(reproducible), gpu(gpu) {}
  std::optional<bool> reproducible;  // as in Settings
  GpuOptions gpu;
};

// For the end of the process: leaves all groups, after their running operations or at once.
void leave_all_groups(bool at_once);

class RingBackend : public Versioned<c10d::Backend> {
 public:
  // Connects the ranks through the store. All of them call it.
  RingBackend(intrusive_ptr<c10d::Store> store, int rank, int size, Settings settings);
  ~RingBackend() override;

  const std::string getBackendName() const override { return name_; }
  bool supportsSplitting() const override { return true; }
  // Not all versions of torch have these, so none of them says `override`.
  // NOLINTBEGIN(modernize-use-override)
  virtual bool supportsCoalescing() const { return true; }
  virtual bool supportsShrinking() const { return true; }
  virtual bool supportsTensorAlloc(c10::DeviceIndex) { return true; }
  intrusive_ptr<Options> getBackendOptions();
  // Of a process group that is bound to a device. All ranks call it.
  virtual void eagerConnectSingleDevice(at::Device device);
  virtual void setTimeout(Milliseconds timeout) { timeout_ = bounded(timeout); }
  virtual void addEphemeralTimeout(const Milliseconds& timeout) { extra_->add(timeout); }
  // NOLINTEND(modernize-use-override)

  // One tensor in, one out.
  intrusive_ptr<c10d::Work> allreduce(Tensors&, const c10d::AllreduceOptions&) override;
  intrusive_ptr<c10d::Work> allreduce_sparse(Tensors&, const c10d::AllreduceOptions&) override;
  intrusive_ptr<c10d::Work> reduce(Tensors&, const c10d::ReduceOptions&) override;
  intrusive_ptr<c10d::Work> broadcast(Tensors&, const c10d::BroadcastOptions&) override;
  intrusive_ptr<c10d::Work> _allgather_base(at::Tensor&, at::Tensor&, const c10d::AllgatherOptions&) override;
  intrusive_ptr<c10d::Work> _reduce_scatter_base(at::Tensor&, at::Tensor&,
                                                 const c10d::ReduceScatterOptions&) override;
  intrusive_ptr<c10d::Work> alltoall_base(at::Tensor&, at::Tensor&, std::vector<std::int64_t>&,
                                          std::vector<std::int64_t>&, const c10d::AllToAllOptions&) override;
  intrusive_ptr<c10d::Work> barrier(const c10d::BarrierOptions&) override;
  void monitoredBarrier(const c10d::BarrierOptions&, bool wait_all_ranks) override;

  // Lists of tensors.
  intrusive_ptr<c10d::Work> allgather(std::vector<Tensors>&, Tensors&,
                                      const c10d::AllgatherOptions&) override;
  intrusive_ptr<c10d::Work> gather(std::vector<Tensors>&, Tensors&, const c10d::GatherOptions&) override;
  intrusive_ptr<c10d::Work> scatter(Tensors&, std::vector<Tensors>&, const c10d::ScatterOptions&) override;
  intrusive_ptr<c10d::Work> reduce_scatter(Tensors&, std::vector<Tensors>&,
                                           const c10d::ReduceScatterOptions&) override;
  intrusive_ptr<c10d::Work> alltoall(Tensors&, Tensors&, const c10d::AllToAllOptions&) override;

  // Several operations at once.
  intrusive_ptr<c10d::Work> allreduce_coalesced(Tensors&, const c10d::AllreduceCoalescedOptions&) override;
  intrusive_ptr<c10d::Work> allgather_coalesced(std::vector<Tensors>&, Tensors&,
                                                const c10d::AllgatherOptions&) override;
  intrusive_ptr<c10d::Work> allgather_into_tensor_coalesced(Tensors&, Tensors&,
                                                            const c10d::AllgatherOptions&) override;
  intrusive_ptr<c10d::Work> reduce_scatter_tensor_coalesced(Tensors&, Tensors&,
                                                            const c10d::ReduceScatterOptions&) override;
  void startCoalescing() override;
  intrusive_ptr<c10d::Work> endCoalescing() override;

  // Messages.
  intrusive_ptr<c10d::Work> send(Tensors&, int to, int tag) override;
  intrusive_ptr<c10d::Work> recv(Tensors&, int from, int tag) override;
  intrusive_ptr<c10d::Work> recvAnysource(Tensors&, int tag) override;

  void setSequenceNumberForGroup() override {}
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }
  std::uint64_t splits() const { return splits_; }

  // As above.
  // NOLINTBEGIN(modernize-use-override)

  // Other groups made from this one.
  virtual intrusive_ptr<Backend> split(const intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                       const intrusive_ptr<Options>& options);
  virtual intrusive_ptr<Backend> merge(const intrusive_ptr<c10d::Store>& store,
                                       const intrusive_ptr<Options>& options, const int& rank,
                                       const int& size);
  virtual intrusive_ptr<Backend> shrink(const std::vector<std::int64_t>& without, int flags,
                                        const intrusive_ptr<Options>& options);

  // Leaves the group and connects a new one, whose ranks all call this. No other call may run at the same
  // time.
  virtual void regroup(const std::string& prefix, int rank, int size, std::optional<Milliseconds> timeout);

  // Waits for running operations, then leaves the group.
  // See docs/gpu.md.
  void registerTensor(const at::Tensor& tensor);
  void deregisterTensor(const at::Tensor& tensor);
  virtual void shutdown();
  // Leaves the group at once. Ranks that wait for this one get an error.
  virtual void abort();

  virtual at::Tensor allocateTensor(long size, at::TensorOptions options);
  virtual std::shared_ptr<c10::Allocator> getMemAllocator();
  // NOLINTEND(modernize-use-override)

 private:
  struct Operation {
    c10d::OpType type;
    const char* title;
    bool asynchronous;
    Milliseconds timeout;

    bool is_message() const { return c10d::isP2POp(type); }
  };
  template <typename Given>
  Operation operation(c10d::OpType type, const char* title, const Given& options) const;

  intrusive_ptr<c10d::Work> launch(const Operation& operation, std::unique_ptr<TensorCalls> calls,
                                   const Tensors& inputs, std::vector<Tensors> outputs);
  intrusive_ptr<c10d::Work> launch(const Operation& operation, std::unique_ptr<Steps> steps,
                                   const Tensors& inputs, std::vector<Tensors> outputs);
  // The same for tensors on a GPU.
  intrusive_ptr<c10d::Work> launch_on(c10::Device gpu, const Operation& operation, TensorCalls& calls,
                                      const Tensors& inputs, std::vector<Tensors> outputs);
  // On a stream of the backend, after the work of the current one. `used` are all tensors that it touches.
  intrusive_ptr<c10d::Work> launch_on(const OwnStream& own, const Operation& operation, const Tensors& used,
                                      const std::function<void(void* stream)>& launch, const Tensors& inputs,
                                      std::vector<Tensors> outputs);
  intrusive_ptr<RingWork> new_work(const Operation& operation, const Tensors& inputs,
                                   std::vector<Tensors> outputs, int peer = -1);
  template <typename Run>
  void run_here(const intrusive_ptr<RingWork>& work, Run run);
  // Passes it to the engine with `submit(completion)`.
  using Submit = std::function<void(Completion)>;
  void hand_over(const intrusive_ptr<RingWork>& work, const Submit& submit);
  void failed_by(const Trouble& trouble);
  // Keeps it for endCoalescing(), if that will follow.
  void collect(const intrusive_ptr<c10d::Work>& work);
  intrusive_ptr<c10d::Work> allgather_several(std::vector<Tensors>& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options);
  intrusive_ptr<c10d::Work> transfer(Tensors& tensors, bool sends, int peer, int tag);
  intrusive_ptr<c10d::Work> begin_transfer(Tensors& tensors, bool sends, int peer, int tag);
  // A message that kernels carry.
  struct Carried {
    Transfer transfer;
    Operation operation;
    at::Tensor tensor, memory;  // the same, if it is contiguous
  };
  bool is_carried(const at::Tensor& tensor, int peer, int tag) const;
  intrusive_ptr<c10d::Work> carry(const std::vector<Carried>& messages);
  intrusive_ptr<Backend> derived(const std::string& prefix, const intrusive_ptr<c10d::Store>& store, int rank,
                                 int size, GlobalRanks ranks, const intrusive_ptr<Options>& options);
  Group& group() const;
  int checked_root(const char* what, std::int64_t root) const;

  const intrusive_ptr<c10d::Store> all_store_;  // for all groups that this one becomes
  intrusive_ptr<c10d::Store> store_;
  std::shared_ptr<const GlobalRanks> ranks_;
  const std::string name_;
  const std::optional<bool> reproducible_;
  const GpuOptions gpu_;
  std::atomic<Milliseconds> timeout_;
  const std::shared_ptr<ExtraTime> extra_ = std::make_shared<ExtraTime>();
  std::shared_ptr<Group> group_;
  std::optional<at::Device> bound_device_;
  std::atomic<std::uint64_t> sequence_{0}, transfers_{0}, monitored_{0}, shrunk_{0}, splits_{0};

  struct Derived {
    std::string prefix;
    c10::weak_intrusive_ptr<c10d::Store> store;
    c10::weak_intrusive_ptr<c10d::Backend> made;
  };
  std::recursive_mutex derived_mutex_;  // a signal handler may make a group while one is being made
  std::optional<Derived> derived_;      // the last one
  std::map<std::string, int> times_derived_;

  OwnStreams own_streams_{gpu_.priority < 0};

  std::mutex coalescing_mutex_;
  bool coalescing_ = false;
  std::vector<intrusive_ptr<c10d::Work>> coalesced_;
  std::vector<Carried> coalesced_messages_;
  std::exception_ptr refused_message_;  // torch would not end what it has begun if one of its messages threw
};

// Some of c10d's options had no asyncOp in early versions, where every call may be asynchronous.
template <typename Given>
bool asynchronous(const Given& options) {
  if constexpr (requires { options.asyncOp; }) {
    return options.asyncOp;
  } else {
    return true;
  }
}

template <typename Given>
RingBackend::Operation RingBackend::operation(c10d::OpType type, const char* title,
                                              const Given& options) const {
  const bool given = options.timeout.count() >= 0;
  const Milliseconds timeout = bounded(given ? options.timeout : timeout_.load());
  return {type, title, asynchronous(options), timeout + extra_->now()};
}

}  // namespace ringreduce::torch_backend

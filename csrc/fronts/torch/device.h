// Operations on tensors in GPU memory. They are launched on a stream of the backend, after the work of the
// caller's current stream, and return. Everything uses c10's view of devices, so that one build serves torch
// with and without CUDA.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <map>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "fronts/torch/tensors.h"

namespace ringreduce::torch_backend {

// The GPU that holds an operation's tensors; none: the CPU. Throws if they are in different places.
std::optional<c10::Device> gpu_of(const char* what, const Tensors& inputs,
                                  const std::vector<Tensors>& outputs);

struct OwnStream {
  c10::Stream stream;
  void* handle;  // CUDA's handle
};

// For each GPU that is used, one stream for collectives, and one for each pair of messages.
class OwnStreams {
 public:
  explicit OwnStreams(bool high_priority) : high_priority_(high_priority) {}
  static constexpr int of_collectives = 0;
  static int of_pair(const Transfer& transfer) { return 1 + 2 * transfer.peer + (transfer.sends ? 1 : 0); }
  const OwnStream& of(c10::Device device, int use);

 private:
  const bool high_priority_;
  std::mutex mutex_;
  std::map<std::pair<c10::DeviceIndex, int>, OwnStream> made_;
};

class DeviceWork : public c10d::Work {
 public:
  // Runs on a stream, which must be the current one.
  DeviceWork(int rank, c10d::OpType type, const char* title, std::uint64_t sequence, c10::Stream stream,
             const Tensors& inputs, std::vector<Tensors> outputs);

  // Called when all of it has been launched on the stream.
  void launched();

  // Whether the GPU has run it. The group's next call throws a failure there.
  bool isCompleted() override;
  // Makes the current stream wait and, with a timeout, the caller too.
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override;
  void abort() override;
  Tensors result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::uint64_t getSequencenumber() const override { return sequence_; }

 private:
  const std::uint64_t sequence_;
  const c10::Stream stream_;
  c10::Event end_;
  const std::vector<Tensors> outputs_;
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// Work on copies in CPU memory of tensors on a GPU. A thread that waits for it, or finds it complete, copies
// the results on its current stream.
class StagedWork : public c10d::Work {
 public:
  StagedWork(c10::intrusive_ptr<c10d::Work> work, Tensors memory, Tensors tensors)
      : work_(std::move(work)), memory_(std::move(memory)), tensors_(std::move(tensors)) {}
  bool isCompleted() override;
  bool isSuccess() const override { return work_->isSuccess(); }
  std::exception_ptr exception() const override { return work_->exception(); }
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  void abort() override { work_->abort(); }
  int sourceRank() const override { return work_->sourceRank(); }
  std::uint64_t getSequencenumber() const override { return work_->getSequencenumber(); }
  Tensors result() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  void deliver();

  const c10::intrusive_ptr<c10d::Work> work_;
  std::mutex mutex_;
  Tensors memory_;  // until the copy
  const Tensors tensors_;
};

}  // namespace ringreduce::torch_backend

// The handle that torch gets for an operation: something to wait for, and a future.
#pragma once

#include <atomic>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "fronts/shared/group.h"
#include "fronts/torch/errors.h"
#include "fronts/torch/extra_time.h"
#include "fronts/torch/tensors.h"

namespace ringreduce::torch_backend {

using Future = c10::ivalue::Future;

// The profiler's title of an operation of the backend of this name. The base class asks the profiler, at a
// cost, wherever there is a title.
const char* title_if_asked(const char* title, const std::string& name);

class RingWork : public c10d::Work {
 public:
  struct About {
    int rank;
    c10d::OpType type;
    const char* title;  // for the profiler, or null
    std::uint64_t sequence;
    std::shared_ptr<const GlobalRanks> ranks;
    std::weak_ptr<const Group> group;
    std::chrono::milliseconds timeout;
    const std::shared_ptr<ExtraTime>& extra;
    int peer = -1;  // of a message
  };
  // `outputs` become the result and the future's value: a list of tensors, or of lists if there are several.
  RingWork(const About& about, const Tensors& inputs, std::vector<Tensors> outputs);

  // Ends the work, once, with the engine's `problem`, if any. Futures complete in a thread of their own.
  void end(const std::exception_ptr& problem, int source);

  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override {}
  void abort() override;
  int sourceRank() const override { return source_; }
  Tensors result() override;
  c10::intrusive_ptr<Future> getFuture() override;
  c10::intrusive_ptr<Future> getFutureResult() override;
  std::uint64_t getSequencenumber() const override { return sequence_; }
  // Not in all versions of torch.
  virtual std::chrono::milliseconds getTimeout() const { return timeout_; }
  virtual std::uint64_t getCompletionKey() const { return key_; }

 private:
  c10::IValue value() const;
  void refuse_inside_another() const;
  [[noreturn]] void time_out(std::chrono::milliseconds timeout) const;
  c10::intrusive_ptr<RingWork> self();

  const std::uint64_t sequence_;
  const std::uint64_t key_;  // unique to this work
  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<const GlobalRanks> ranks_;
  const std::weak_ptr<const Group> group_;
  const int peer_;
  const bool is_message_;
  const std::shared_ptr<ExtraTime> extra_;  // must learn of the end, if any
  std::vector<Tensors> outputs_;
  std::atomic<int> source_{-1};
  std::atomic<bool> over_{false};
  std::mutex futures_mutex_;
  c10::intrusive_ptr<Future> future_, outcome_;
};

// Several operations run as one.
class CoalescedWork : public c10d::Work {
 public:
  CoalescedWork(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works);
  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override;
  Tensors result() override;
  c10::intrusive_ptr<Future> getFuture() override;

 private:
  const std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

}  // namespace ringreduce::torch_backend

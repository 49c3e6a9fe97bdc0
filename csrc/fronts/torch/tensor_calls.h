// A torch operation as the engine runs it: one or several calls, and the copies to make when they are
// complete.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>

#include <chrono>
#include <deque>
#include <vector>

#include "engine/planning/call.h"
#include "fronts/torch/tensors.h"

namespace ringreduce::torch_backend {

// `from`, `to` and `memory` may each be a tensor, contiguous or not, or a list of tensors, whose values are
// taken one after the other. Their memory is kept until the job has finished.
class TensorCalls : public Steps {
 public:
  // `split`: for each call.
  explicit TensorCalls(std::chrono::milliseconds timeout, std::uint64_t split = 0)
      : timeout_(timeout), split_(split) {}

  template <typename Given>
  void reads(Call& call, const Given& from) {
    call.input = keep(joined(from)).const_data_ptr();
  }
  template <typename Given>
  void writes(Call& call, const Given& to) {
    const at::Tensor& room = keep(room_for(to));
    call.output = room.mutable_data_ptr();
    copy_at_the_end(room, to);
  }
  // Sets uneven blocks of the ranks.
  void blocks(Call& call, Extents input, Extents output);

  void add(Call call) {
    call.timeout = timeout_;
    call.split = split_;
    calls_.push_back(call);
  }
  template <typename Input, typename Output>
  void add(Call call, const Input& from, const Output& to) {
    reads(call, from);
    writes(call, to);
    add(call);
  }
  // In place: the same memory is input and output.
  template <typename Given>
  void update(Call call, const Given& memory) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    reads(call, memory);
    call.output = kept_.back().mutable_data_ptr();
    copy_at_the_end(kept_.back(), memory);
    add(call);
  }

  // When all calls are complete, after their own copies. Both have the same sizes.
  void copy(const at::Tensor& from, const at::Tensor& to) {
    check_writable(to);
    copies_.push_back({to, from});
  }

  bool next(Call& call) override;

  // The tensors whose memory it uses.
  Tensors tensors() const;

  // The call, if it is the only step.
  const Call* single() const { return calls_.size() == 1 && copies_.empty() ? &calls_.front() : nullptr; }

 private:
  // The program may replace a tensor's memory during the call.
  const at::Tensor& keep(at::Tensor tensor) {
    memory_.push_back(tensor.storage());
    return kept_.emplace_back(std::move(tensor));
  }
  struct Copy {
    at::Tensor to, from;
  };
  // Copies when all calls are complete, unless the call used the tensors' own memory.
  void copy_at_the_end(const at::Tensor& from, const at::Tensor& to);
  void copy_at_the_end(const at::Tensor& from, const Tensors& to);

  const std::chrono::milliseconds timeout_;
  const std::uint64_t split_;
  std::vector<Call> calls_;
  std::size_t at_ = 0;
  std::deque<Extents> extents_;
  Tensors kept_;
  std::vector<c10::Storage> memory_;
  std::vector<Copy> copies_;
};

}  // namespace ringreduce::torch_backend

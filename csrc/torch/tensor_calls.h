// An operation of torch's as the engine runs it: one call or several, and what must be copied when they are
// complete.
#pragma once

#include <deque>
#include <vector>

#include "engine/planning/call.h"
#include "torch/tensors.h"

namespace ringreduce::torch_backend {

class TensorCalls : public Steps {
 public:
  // Keeps the tensors' memory until the job is over.
  void reads(Call& call, const at::Tensor& tensor) {
    call.input = tensor.const_data_ptr();
    kept_.push_back(tensor);
  }
  void writes(Call& call, const at::Tensor& tensor) {
    call.output = tensor.mutable_data_ptr();
    kept_.push_back(tensor);
  }
  // The same memory for both, and the result in the tensor itself, contiguous or not.
  void updates(Call& call, const at::Tensor& tensor);

  void blocks(Call& call, Extents input, Extents output);
  void add(const Call& call) { calls_.push_back(call); }
  // When all calls are complete: copies what was gathered in `flat` to the tensors of a list, unless it is
  // their own memory.
  void spread(const at::Tensor& flat, const Tensors& to);
  void spread(const at::Tensor& room, const at::Tensor& to);

  bool next(Call& call) override;

  // Whose memory it uses.
  Tensors tensors() const;

  // The call, if it is all there is.
  const Call* single() const { return calls_.size() == 1 && copies_.empty() ? &calls_.front() : nullptr; }

 private:
  struct Copy {
    at::Tensor to, from;
  };
  std::vector<Call> calls_;
  std::size_t at_ = 0;
  std::deque<Extents> extents_;
  Tensors kept_;
  std::vector<Copy> copies_;
};

}  // namespace ringreduce::torch_backend

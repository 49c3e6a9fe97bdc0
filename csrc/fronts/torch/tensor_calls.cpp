#include "fronts/torch/tensor_calls.h"

namespace ringreduce::torch_backend {

void TensorCalls::blocks(Call& call, Extents input, Extents output) {
  call.count = 0;
  call.input_extents = &extents_.emplace_back(std::move(input));
  call.output_extents = &extents_.emplace_back(std::move(output));
}

void TensorCalls::copy_at_the_end(const at::Tensor& from, const at::Tensor& to) {
  if (from.is_same(to)) return;
  check_writable(to);
  copies_.push_back({to, from.view(to.sizes())});
}

void TensorCalls::copy_at_the_end(const at::Tensor& from, const Tensors& to) {
  if (consecutive(to)) return;
  std::int64_t offset = 0;
  for (const at::Tensor& tensor : to) {
    check_writable(tensor);
    copies_.push_back({tensor, from.narrow(0, offset, tensor.numel()).view(tensor.sizes())});
    offset += tensor.numel();
  }
}

Tensors TensorCalls::tensors() const {
  Tensors all = kept_;
  for (const Copy& copy : copies_) all.push_back(copy.to);  // `from` is kept, or part of a kept tensor
  return all;
}

bool TensorCalls::next(Call& call) {
  if (at_ < calls_.size()) {
    call = calls_[at_++];
    return true;
  }
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const Copy& copy : copies_) copy.to.copy_(copy.from);
  return false;
}

}  // namespace ringreduce::torch_backend

#include "torch/tensor_calls.h"

#include <ATen/core/LegacyTypeDispatch.h>

namespace ringreduce::torch_backend {

void TensorCalls::updates(Call& call, const at::Tensor& tensor) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::Tensor memory = tensor.contiguous();  // itself, if it is
  call.input = memory.const_data_ptr();
  call.output = memory.mutable_data_ptr();
  kept_.push_back(memory);
  if (!memory.is_same(tensor)) copies_.push_back({tensor, memory});
}

void TensorCalls::blocks(Call& call, Extents input, Extents output) {
  call.input_extents = &extents_.emplace_back(std::move(input));
  call.output_extents = &extents_.emplace_back(std::move(output));
}

void TensorCalls::spread(const at::Tensor& flat, const Tensors& to) {
  if (is_own_memory(to, flat)) return;
  std::int64_t offset = 0;
  for (const at::Tensor& tensor : to) {
    copies_.push_back({tensor, flat.narrow(0, offset, tensor.numel()).view(tensor.sizes())});
    offset += tensor.numel();
  }
}

void TensorCalls::spread(const at::Tensor& room, const at::Tensor& to) {
  if (!room.is_same(to)) copies_.push_back({to, room.view(to.sizes())});
}

Tensors TensorCalls::tensors() const {
  Tensors all = kept_;
  for (const Copy& copy : copies_) all.push_back(copy.to);  // `from` is kept, or a part of what is
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

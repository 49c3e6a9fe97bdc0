// Messages between two ranks.
#include <ATen/core/LegacyTypeDispatch.h>

#include "torch/backend.h"

namespace ringreduce::torch_backend {
namespace {

// Keeps a message's memory, and copies what came to a tensor that is not contiguous.
class Delivery : public Completion {
 public:
  Delivery(std::unique_ptr<Completion> then, at::Tensor memory, at::Tensor tensor)
      : then_(std::move(then)), memory_(std::move(memory)), tensor_(std::move(tensor)) {}
  void over(std::exception_ptr problem, int source) noexcept override {
    try {
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      if (!problem && !memory_.is_same(tensor_)) tensor_.copy_(memory_);
    } catch (...) {
      problem = std::current_exception();
    }
    then_->over(problem, source);
  }

 private:
  const std::unique_ptr<Completion> then_;
  const at::Tensor memory_, tensor_;
};

}  // namespace

intrusive_ptr<c10d::Work> RingBackend::transfer(Tensors& tensors, bool sends, int peer, int tag) {
  const char* what = sends ? "send" : "recv";
  const at::Tensor& tensor = only(what, tensors);
  TORCH_CHECK(peer == any_rank ? !sends : peer >= 0 && peer < size_, "ringreduce: the peer of ", what,
              " must be a rank from 0 to ", size_ - 1, ", not ", peer);
  const Operation operation{sends              ? c10d::OpType::SEND
                            : peer == any_rank ? c10d::OpType::RECVANYSOURCE
                                               : c10d::OpType::RECV,
                            sends              ? "ringreduce:send"
                            : peer == any_rank ? "ringreduce:recvAnySource"
                                               : "ringreduce:recv",
                            true, timeout_.load() + extra_->now()};
  const Elements elements = moved(tensor.scalar_type());
  Letter letter;
  letter.sends = sends;
  letter.peer = peer;
  letter.dtype = elements.dtype;
  letter.count = count(tensor, elements);
  letter.tag = tag;
  letter.timeout = operation.timeout;
  const at::Tensor memory = tensor.contiguous();
  letter.data = sends ? const_cast<void*>(memory.const_data_ptr()) : memory.mutable_data_ptr();
  const auto work = new_work(operation, tensors, {tensors}, peer);
  hand_over(work, [&](auto completion) {
    group().submit(letter,
                   std::make_unique<Delivery>(std::move(completion), memory, sends ? memory : tensor));
  });
  return work;
}

intrusive_ptr<c10d::Work> RingBackend::send(Tensors& tensors, int to, int tag) {
  return transfer(tensors, true, to, tag);
}

intrusive_ptr<c10d::Work> RingBackend::recv(Tensors& tensors, int from, int tag) {
  return transfer(tensors, false, from, tag);
}

intrusive_ptr<c10d::Work> RingBackend::recvAnysource(Tensors& tensors, int tag) {
  return transfer(tensors, false, any_rank, tag);
}

}  // namespace ringreduce::torch_backend

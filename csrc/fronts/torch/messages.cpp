// Messages between two ranks.
#include <ATen/core/LegacyTypeDispatch.h>

#include "fronts/torch/backend.h"
#include "fronts/torch/gil.h"

namespace ringreduce::torch_backend {
namespace {

// The memory that a message is sent from or received in. A GPU tensor is copied after the current stream has
// written it.
at::Tensor memory_for(const at::Tensor& tensor, bool sends) {
  if (tensor.is_cpu()) return tensor.contiguous();
  if (sends) return tensor.cpu().contiguous();
  return at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
}

// Copies a received message to a tensor that is not contiguous.
Completion delivering(at::Tensor memory, at::Tensor tensor, Completion then) {
  return [memory = std::move(memory), tensor = std::move(tensor), then = std::move(then)](
             std::exception_ptr problem, int source) {
    try {
      at::AutoDispatchBelowADInplaceOrView below_autograd;
      if (!problem && !memory.is_same(tensor)) tensor.copy_(memory);
    } catch (...) {
      problem = std::current_exception();
    }
    then(problem, source);
  };
}

}  // namespace

// Neither kernels nor NCCL compare tags, or take what comes first.
bool RingBackend::is_carried(const at::Tensor& tensor, int peer, int tag) const {
  if (tensor.is_cpu() || tag != 0 || !group().carries_messages()) return false;
  TORCH_CHECK(peer != any_source,
              "ringreduce: recv from any rank takes a CUDA tensor only with a tag other than 0 "
              "in a process group that is bound to a device, because messages without a tag are carried by "
              "kernels or "
              "NCCL");
  return true;
}

intrusive_ptr<c10d::Work> RingBackend::carry(const std::vector<Carried>& messages) {
  const Carried& first = messages.front();
  const c10::Device gpu = first.tensor.device();
  std::vector<Transfer> transfers;
  Tensors used, sent, received;
  for (const Carried& one : messages) {
    TORCH_CHECK(one.tensor.device() == gpu,
                "ringreduce: the tensors of coalesced messages must be on one device, not on ", gpu, " and ",
                one.tensor.device());
    transfers.push_back(one.transfer);
    used.push_back(one.memory);
    used.push_back(one.tensor);
    (one.transfer.sends ? sent : received).push_back(one.tensor);
  }
  const auto launch = [&](void* stream) {
    group().exchange(static_cast<unsigned char>(gpu.index()), transfers, stream);
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    for (const Carried& one : messages) {
      if (!one.transfer.sends && !one.memory.is_same(one.tensor)) one.tensor.copy_(one.memory);
    }
  };
  const Tensors outputs = received.empty() ? sent : received;
  return launch_on(own_streams_.of(gpu, OwnStreams::of_pair(first.transfer)), first.operation, used, launch,
                   sent, {outputs});
}

intrusive_ptr<c10d::Work> RingBackend::transfer(Tensors& tensors, bool sends, int peer, int tag) {
  const StaysAtEnd here;
  try {
    return begin_transfer(tensors, sends, peer, tag);
  } catch (...) {
    const std::lock_guard lock(coalescing_mutex_);
    if (!coalescing_) throw;
    if (!refused_message_) refused_message_ = std::current_exception();
    return nullptr;
  }
}

intrusive_ptr<c10d::Work> RingBackend::begin_transfer(Tensors& tensors, bool sends, int peer, int tag) {
  const char* what = sends ? "send" : "recv";
  const at::Tensor& tensor = only(what, tensors);
  if (!sends) check_writable(tensor);
  TORCH_CHECK(peer == any_source ? !sends : peer >= 0 && peer < size_, "ringreduce: the peer of ", what,
              " must be a rank from 0 to ", size_ - 1, ", not ", peer);
  const Operation operation{sends                ? c10d::OpType::SEND
                            : peer == any_source ? c10d::OpType::RECVANYSOURCE
                                                 : c10d::OpType::RECV,
                            sends                ? "send"
                            : peer == any_source ? "recvAnySource"
                                                 : "recv",
                            true, timeout_.load() + extra_->now()};
  const Elements elements = moved(tensor.scalar_type());
  Transfer message;
  message.sends = sends;
  message.peer = peer;
  message.dtype = elements.dtype;
  message.count = count(tensor, elements);
  message.tag = tag;
  message.timeout = operation.timeout;
  if (is_carried(tensor, peer, tag)) {
    const at::Tensor memory = tensor.contiguous();
    message.data = const_cast<void*>(memory.const_data_ptr());
    const Carried carried{message, operation, tensor, memory};
    const std::lock_guard lock(coalescing_mutex_);
    if (!coalescing_) return carry({carried});
    coalesced_messages_.push_back(carried);
    return nullptr;
  }
  const at::Tensor memory = memory_for(tensor, sends);
  message.data = sends ? const_cast<void*>(memory.const_data_ptr()) : memory.mutable_data_ptr();
  const bool staged = !tensor.is_cpu();
  const auto work = new_work(operation, tensors, {tensors}, peer);
  hand_over(work, [&](Completion then) {
    group().submit(message, std::make_shared<c10::Storage>(memory.storage()),
                   delivering(memory, sends || staged ? memory : tensor, std::move(then)));
  });
  intrusive_ptr<c10d::Work> given = work;
  if (staged && !sends) given = c10::make_intrusive<StagedWork>(work, Tensors{memory}, tensors);
  collect(given);
  return given;
}

intrusive_ptr<c10d::Work> RingBackend::send(Tensors& tensors, int to, int tag) {
  return transfer(tensors, true, to, tag);
}

intrusive_ptr<c10d::Work> RingBackend::recv(Tensors& tensors, int from, int tag) {
  return transfer(tensors, false, from, tag);
}

intrusive_ptr<c10d::Work> RingBackend::recvAnysource(Tensors& tensors, int tag) {
  return transfer(tensors, false, any_source, tag);
}

}  // namespace ringreduce::torch_backend

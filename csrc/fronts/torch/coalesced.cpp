// Several operations run as one.
#include <algorithm>
#include <bit>

#include "fronts/torch/backend.h"

namespace ringreduce::torch_backend {
namespace {

// Many small tensors are faster in one message; large ones are faster without a copy.
constexpr std::int64_t pack_up_to = 256 << 10;  // bytes in all

bool worth_packing(const Tensors& tensors) {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<std::int64_t>(tensor.nbytes());
  return tensors.size() > 1 && bytes <= pack_up_to;
}

// See Call::split. A single tensor counts as a plain call.
std::uint64_t split_of(const Tensors& tensors) {
  if (tensors.size() < 2) return 0;
  constexpr int bits = 48;
  std::uint64_t hash = 0;
  for (const at::Tensor& tensor : tensors) {
    hash = (std::rotl(hash, 23) ^ static_cast<std::uint64_t>(tensor.numel())) * 0x9e3779b97f4a7c15ull;
  }
  return std::uint64_t{std::min<std::size_t>(tensors.size(), 0xffff)} << bits | hash >> (64 - bits);
}

}  // namespace

intrusive_ptr<c10d::Work> RingBackend::allreduce_coalesced(Tensors& tensors,
                                                           const c10d::AllreduceCoalescedOptions& options) {
  TORCH_CHECK(!tensors.empty(), "ringreduce: all_reduce_coalesced takes at least one tensor");
  check_list("all_reduce_coalesced", tensors, tensors.size(), tensors.front());
  const auto operation = this->operation(c10d::OpType::ALLREDUCE_COALESCED, "all_reduce", options);
  Call call = combining(Collective::all_reduce, tensors.front(), options.reduceOp);
  auto calls = std::make_unique<TensorCalls>(operation.timeout, split_of(tensors));
  const std::size_t times = moved(tensors.front().scalar_type()).times;
  if (worth_packing(tensors)) {
    call.count = static_cast<std::size_t>(total(tensors)) * times;
    calls->update(call, tensors);
  } else {
    for (const at::Tensor& tensor : tensors) {
      call.count = static_cast<std::size_t>(tensor.numel()) * times;
      calls->update(call, tensor);
    }
  }
  return launch(operation, std::move(calls), tensors, {tensors});
}

// One message with all of a rank's tensors, whatever their dtypes; lists[r][i] is rank r's i-th tensor.
intrusive_ptr<c10d::Work> RingBackend::allgather_coalesced(std::vector<Tensors>& lists, Tensors& inputs,
                                                           const c10d::AllgatherOptions& options) {
  TORCH_CHECK(static_cast<int>(lists.size()) == size_, "ringreduce: all_gather_coalesced takes ", size_,
              " lists, one for each rank, not ", lists.size());
  TORCH_CHECK(!inputs.empty(), "ringreduce: all_gather_coalesced takes at least one tensor");
  const auto operation = this->operation(c10d::OpType::ALLGATHER_COALESCED, "all_gather", options);
  auto calls = std::make_unique<TensorCalls>(operation.timeout, split_of(inputs));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_dense("all_gather_coalesced", inputs[i]);
    Tensors blocks;
    for (const Tensors& list : lists) {
      TORCH_CHECK(list.size() == inputs.size(), "ringreduce: all_gather_coalesced takes lists of ",
                  inputs.size(), " tensors, not of ", list.size());
      TORCH_CHECK(list[i].sizes() == inputs[i].sizes(),
                  "ringreduce: all_gather_coalesced's output for input ", i, " has the sizes ",
                  list[i].sizes(), ", not ", inputs[i].sizes());
      blocks.push_back(list[i]);
    }
    check_list("all_gather_coalesced", blocks, size_, inputs[i]);
    calls->add(moving(Collective::all_gather, inputs[i]), inputs[i], blocks);
  }
  return launch(operation, std::move(calls), inputs, lists);
}

intrusive_ptr<c10d::Work> RingBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  TORCH_CHECK(outputs.size() == inputs.size(), "ringreduce: all_gather_into_tensor_coalesced takes as many ",
              "outputs as inputs, not ", outputs.size(), " and ", inputs.size());
  const auto operation = this->operation(c10d::OpType::ALLGATHER_COALESCED, "all_gather", options);
  auto calls = std::make_unique<TensorCalls>(operation.timeout, split_of(inputs));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_pair("all_gather_into_tensor_coalesced", outputs[i], inputs[i], size_);
    calls->add(moving(Collective::all_gather, inputs[i]), inputs[i], outputs[i]);
  }
  return launch(operation, std::move(calls), inputs, {outputs});
}

intrusive_ptr<c10d::Work> RingBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK(outputs.size() == inputs.size(), "ringreduce: reduce_scatter_tensor_coalesced takes as many ",
              "outputs as inputs, not ", outputs.size(), " and ", inputs.size());
  const auto operation = this->operation(coalesced_reduce_scatter<c10d::OpType>(), "reduce_scatter", options);
  auto calls = std::make_unique<TensorCalls>(operation.timeout, split_of(inputs));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check_pair("reduce_scatter_tensor_coalesced", inputs[i], outputs[i], size_);
    calls->add(combining(Collective::reduce_scatter, outputs[i], options.reduceOp), inputs[i], outputs[i]);
  }
  return launch(operation, std::move(calls), inputs, {outputs});
}

}  // namespace ringreduce::torch_backend

// Operations with one tensor in and one out.
#include "fronts/torch/backend.h"
#include "fronts/torch/gil.h"
#include "fronts/torch/meeting.h"
#include "fronts/torch/sparse.h"

namespace ringreduce::torch_backend {
namespace {

// Sizes along the first dimension, in elements; empty: equal parts.
std::vector<std::int64_t> split_counts(const char* what, const at::Tensor& tensor,
                                       const std::vector<std::int64_t>& splits, int world) {
  std::vector<std::int64_t> counts;
  if (splits.empty()) {
    TORCH_CHECK(tensor.numel() == 0 || (tensor.dim() > 0 && tensor.size(0) % world == 0),
                "ringreduce: ", what, "'s first dimension is not divisible among ", world, " ranks");
    counts.assign(world, tensor.numel() / world);
    return counts;
  }
  TORCH_CHECK(static_cast<int>(splits.size()) == world, "ringreduce: ", what, " needs ", world,
              " split sizes, not ", splits.size());
  std::int64_t rows = 0;
  const std::int64_t row =
      tensor.dim() > 0 && tensor.size(0) > 0 ? tensor.numel() / tensor.size(0) : std::int64_t{1};
  for (const std::int64_t n : splits) {
    TORCH_CHECK(n >= 0, "ringreduce: ", what, " has the negative split size ", n);
    rows += n;
    counts.push_back(n * row);
  }
  TORCH_CHECK(rows == (tensor.dim() > 0 ? tensor.size(0) : tensor.numel()), "ringreduce: ", what,
              "'s split sizes add up to ", rows, ", not to its first dimension");
  return counts;
}

const at::Tensor& root_tensor(const char* what, const Tensors& tensors, std::int64_t at) {
  TORCH_CHECK(at >= 0 && at < static_cast<std::int64_t>(tensors.size()), "ringreduce: ", what,
              " has no root tensor ", at, " among ", tensors.size());
  return tensors[at];
}

at::Tensor combined(const at::Tensor& x, const at::Tensor& y, const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::AVG:
      return x + y;
    case c10d::ReduceOp::PRODUCT:
      return x * y;
    case c10d::ReduceOp::MIN:
      return at::minimum(x, y);
    case c10d::ReduceOp::MAX:
      return at::maximum(x, y);
    case c10d::ReduceOp::BAND:
      return x & y;
    case c10d::ReduceOp::BOR:
      return x | y;
    case c10d::ReduceOp::BXOR:
      return x ^ y;
    default:
      TORCH_CHECK(false, "ringreduce: all_reduce of several tensors of a rank does not serve this reduce op");
  }
}

}  // namespace

int RingBackend::checked_root(const char* what, std::int64_t root) const {
  TORCH_CHECK(root >= 0 && root < size_, "ringreduce: the root of ", what, " must be a rank from 0 to ",
              size_ - 1, ", not ", root);
  return static_cast<int>(root);
}

intrusive_ptr<c10d::Work> RingBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (!tensors.empty() && tensors.front().is_sparse()) return allreduce_sparse(tensors, options);
  check_equal("all_reduce", tensors);
  const auto operation = this->operation(c10d::OpType::ALLREDUCE, "all_reduce", options);
  auto calls = std::make_unique<TensorCalls>(operation.timeout);
  const Call call = combining(Collective::all_reduce, tensors.front(), options.reduceOp);
  if (tensors.size() == 1) {
    calls->update(call, tensors.front());
  } else {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    at::Tensor own = tensors.front();
    for (std::size_t i = 1; i < tensors.size(); ++i) own = combined(own, tensors[i], options.reduceOp);
    calls->update(call, own);
    for (const at::Tensor& tensor : tensors) calls->copy(own, tensor);
  }
  return launch(operation, std::move(calls), tensors, {tensors});
}

// Tensors on a GPU are summed in CPU memory, so ranks may have them in different places.
intrusive_ptr<c10d::Work> RingBackend::allreduce_sparse(Tensors& tensors,
                                                        const c10d::AllreduceOptions& options) {
  const StaysAtEnd here;
  TORCH_CHECK(!tensors.empty(), "ringreduce: all_reduce takes at least one tensor");
  const auto operation = this->operation(c10d::OpType::_ALLREDUCE_SPARSE, "sparse_all_reduce", options);
  const bool staged = gpu_of("all_reduce", tensors, {}).has_value();
  Tensors memory = tensors;
  if (staged)
    std::transform(tensors.begin(), tensors.end(), memory.begin(), [](const auto& t) { return t.cpu(); });
  auto steps = std::make_unique<SparseAllReduce>(memory, options.reduceOp, size_, operation.timeout);
  if (!staged) return launch(operation, std::unique_ptr<Steps>(std::move(steps)), tensors, {tensors});
  const auto work = new_work(operation, tensors, {memory});
  hand_over(work, [&](auto completion) { group().submit(std::move(steps), std::move(completion)); });
  const auto given = c10::make_intrusive<StagedWork>(work, memory, tensors);
  collect(given);
  if (!operation.asynchronous && !coalescing_) given->wait(kNoTimeout);
  return given;
}

intrusive_ptr<c10d::Work> RingBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  only("reduce", tensors);
  const at::Tensor& tensor = root_tensor("reduce", tensors, options.rootTensor);
  const auto operation = this->operation(c10d::OpType::REDUCE, "reduce", options);
  Call call = combining(Collective::reduce, tensor, options.reduceOp);
  call.root = checked_root("reduce", options.rootRank);
  auto calls = std::make_unique<TensorCalls>(operation.timeout);
  if (call.root == rank_) {
    calls->update(call, tensor);
  } else {
    calls->reads(call, tensor);
    calls->add(call);
  }
  return launch(operation, std::move(calls), tensors, {tensors});
}

intrusive_ptr<c10d::Work> RingBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  check_equal("broadcast", tensors);
  const at::Tensor& tensor = root_tensor("broadcast", tensors, options.rootTensor);
  const auto operation = this->operation(c10d::OpType::BROADCAST, "broadcast", options);
  Call call = moving(Collective::broadcast, tensor);
  call.root = checked_root("broadcast", options.rootRank);
  auto calls = std::make_unique<TensorCalls>(operation.timeout);
  calls->update(call, tensor);
  for (const at::Tensor& other : tensors) {
    if (!other.is_same(tensor)) calls->copy(tensor, other);
  }
  return launch(operation, std::move(calls), tensors, {tensors});
}

intrusive_ptr<c10d::Work> RingBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                       const c10d::AllgatherOptions& options) {
  check_pair("all_gather_into_tensor", output, input, size_);
  const auto operation = this->operation(c10d::OpType::_ALLGATHER_BASE, "all_gather", options);
  auto calls = std::make_unique<TensorCalls>(operation.timeout);
  calls->add(moving(Collective::all_gather, input), input, output);
  return launch(operation, std::move(calls), {input}, {{output}});
}

intrusive_ptr<c10d::Work> RingBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                            const c10d::ReduceScatterOptions& options) {
  check_pair("reduce_scatter_tensor", input, output, size_);
  const auto operation = this->operation(c10d::OpType::_REDUCE_SCATTER_BASE, "reduce_scatter", options);
  auto calls = std::make_unique<TensorCalls>(operation.timeout);
  calls->add(combining(Collective::reduce_scatter, output, options.reduceOp), input, output);
  return launch(operation, std::move(calls), {input}, {{output}});
}

intrusive_ptr<c10d::Work> RingBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                     std::vector<std::int64_t>& output_splits,
                                                     std::vector<std::int64_t>& input_splits,
                                                     const c10d::AllToAllOptions& options) {
  check_list("all_to_all_single", {output, input}, 2, input);
  const auto operation = this->operation(c10d::OpType::ALLTOALL_BASE, "all_to_all", options);
  Call call = moving(Collective::all_to_all, input);
  auto calls = std::make_unique<TensorCalls>(operation.timeout);
  const auto sent = split_counts("all_to_all_single's input", input, input_splits, size_);
  const auto received = split_counts("all_to_all_single's output", output, output_splits, size_);
  if (input_splits.empty() && output_splits.empty()) {
    TORCH_CHECK(input.numel() == output.numel(), "ringreduce: all_to_all_single without split sizes takes ",
                "input and output of one length, not ", input.numel(), " and ", output.numel(), " elements");
    call.count /= static_cast<std::size_t>(size_);
  } else {
    const std::size_t times = moved(input.scalar_type()).times;
    calls->blocks(call, extents_of(sent, times), extents_of(received, times));
  }
  calls->add(call, input, output);
  return launch(operation, std::move(calls), {input}, {{output}});
}

intrusive_ptr<c10d::Work> RingBackend::barrier(const c10d::BarrierOptions& options) {
  const auto operation = this->operation(c10d::OpType::BARRIER, "barrier", options);
  auto calls = std::make_unique<TensorCalls>(operation.timeout);
  Call call;
  call.collective = Collective::barrier;
  calls->add(call);
  return launch(operation, std::move(calls), {}, {});
}

void RingBackend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  const StaysAtEnd here;
  const Milliseconds timeout = options.timeout.count() >= 0 ? options.timeout : timeout_.load();
  monitored_barrier(*store_, rank_, size_, monitored_++, timeout, wait_all_ranks);
}

}  // namespace ringreduce::torch_backend

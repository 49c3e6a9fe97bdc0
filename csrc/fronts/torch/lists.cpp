// Operations whose input or output is a list of tensors, one for each rank.
#include "fronts/torch/backend.h"

namespace ringreduce::torch_backend {
namespace {

// This rank's list; other ranks of a rooted operation have none.
const Tensors& only_list(const char* what, const std::vector<Tensors>& lists) {
  TORCH_CHECK(lists.size() == 1, "ringreduce: ", what, " takes one list of tensors, not ", lists.size());
  return lists.front();
}

// Sets the ranks' blocks from a list: equal ones by the call's count, others by extents.
void blocks_of(const Tensors& list, Call& call, TensorCalls& calls) {
  if (!all_equal(list)) calls.blocks(call, extents_of(list), extents_of(list));
}

void check_own(const char* what, const at::Tensor& block, const at::Tensor& own, int rank) {
  TORCH_CHECK(block.numel() == own.numel(), "ringreduce: ", what, "'s tensor has ", own.numel(),
              " elements, but the list has ", block.numel(), " for this rank, ", rank);
}

}  // namespace

intrusive_ptr<c10d::Work> RingBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                 const c10d::AllgatherOptions& options) {
  if (inputs.size() > 1) return allgather_several(outputs, inputs, options);
  const at::Tensor& input = only("all_gather", inputs);
  const Tensors& list = only_list("all_gather", outputs);
  check_list("all_gather", list, size_, input);
  check_own("all_gather", list[rank_], input, rank_);
  const auto operation = this->operation(c10d::OpType::ALLGATHER, "all_gather", options);
  Call call = moving(Collective::all_gather, input);
  auto calls = std::make_unique<TensorCalls>(operation.timeout);
  blocks_of(list, call, *calls);
  calls->add(call, input, list);
  return launch(operation, std::move(calls), inputs, outputs);
}

// All of a rank's tensors are one block. Every list gets the blocks of all ranks.
intrusive_ptr<c10d::Work> RingBackend::allgather_several(std::vector<Tensors>& outputs, Tensors& inputs,
                                                         const c10d::AllgatherOptions& options) {
  check_equal("all_gather", inputs);
  TORCH_CHECK(outputs.size() == inputs.size(), "ringreduce: all_gather takes a list for each of ",
              inputs.size(), " tensors, not ", outputs.size());
  for (const Tensors& list : outputs) {
    check_list("all_gather", list, inputs.size() * size_, inputs.front());
    check_equal("all_gather", list);
    check_equal("all_gather", {inputs.front(), list.front()});
  }
  const auto operation = this->operation(c10d::OpType::ALLGATHER, "all_gather", options);
  Call call = moving(Collective::all_gather, inputs.front());
  call.count *= inputs.size();
  auto calls = std::make_unique<TensorCalls>(operation.timeout);
  calls->add(call, inputs, outputs.front());
  for (std::size_t i = 1; i < outputs.size(); ++i) {
    for (std::size_t k = 0; k < outputs[i].size(); ++k) calls->copy(outputs[0][k], outputs[i][k]);
  }
  return launch(operation, std::move(calls), inputs, outputs);
}

intrusive_ptr<c10d::Work> RingBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                              const c10d::GatherOptions& options) {
  const at::Tensor& input = only("gather", inputs);
  const auto operation = this->operation(c10d::OpType::GATHER, "gather", options);
  Call call = moving(Collective::gather, input);
  call.root = checked_root("gather", options.rootRank);
  auto calls = std::make_unique<TensorCalls>(operation.timeout);
  calls->reads(call, input);
  if (call.root == rank_) {
    const Tensors& list = only_list("gather", outputs);
    check_list("gather", list, size_, input);
    for (const at::Tensor& block : list) check_own("gather", block, input, rank_);
    calls->writes(call, list);
  } else {
    TORCH_CHECK(outputs.empty() || outputs.front().empty(),
                "ringreduce: gather takes outputs at its root only");
  }
  calls->add(call);
  return launch(operation, std::move(calls), inputs, outputs);
}

intrusive_ptr<c10d::Work> RingBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                               const c10d::ScatterOptions& options) {
  const at::Tensor& output = only("scatter", outputs);
  const auto operation = this->operation(c10d::OpType::SCATTER, "scatter", options);
  Call call = moving(Collective::scatter, output);
  call.root = checked_root("scatter", options.rootRank);
  auto calls = std::make_unique<TensorCalls>(operation.timeout);
  calls->writes(call, output);
  Tensors given;
  if (call.root == rank_) {
    given = only_list("scatter", inputs);
    check_list("scatter", given, size_, output);
    for (const at::Tensor& block : given) check_own("scatter", block, output, rank_);
    calls->reads(call, given);
  } else {
    TORCH_CHECK(inputs.empty() || inputs.front().empty(),
                "ringreduce: scatter takes inputs at its root only");
  }
  calls->add(call);
  return launch(operation, std::move(calls), given, {outputs});
}

intrusive_ptr<c10d::Work> RingBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                      const c10d::ReduceScatterOptions& options) {
  const at::Tensor& output = only("reduce_scatter", outputs);
  const Tensors& list = only_list("reduce_scatter", inputs);
  check_list("reduce_scatter", list, size_, output);
  check_own("reduce_scatter", list[rank_], output, rank_);
  const auto operation = this->operation(c10d::OpType::REDUCE_SCATTER, "reduce_scatter", options);
  Call call = combining(Collective::reduce_scatter, output, options.reduceOp);
  auto calls = std::make_unique<TensorCalls>(operation.timeout);
  blocks_of(list, call, *calls);
  calls->add(call, list, output);
  return launch(operation, std::move(calls), list, {outputs});
}

intrusive_ptr<c10d::Work> RingBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                                const c10d::AllToAllOptions& options) {
  TORCH_CHECK(!inputs.empty(), "ringreduce: all_to_all takes a list with one tensor for each rank");
  check_list("all_to_all", inputs, size_, inputs.front());
  check_list("all_to_all", outputs, size_, inputs.front());
  check_own("all_to_all", outputs[rank_], inputs[rank_], rank_);
  const auto operation = this->operation(c10d::OpType::ALLTOALL, "all_to_all", options);
  Call call = moving(Collective::all_to_all, inputs.front());
  auto calls = std::make_unique<TensorCalls>(operation.timeout);
  // Only their owners know whether all blocks are equal, so every rank declares them uneven.
  calls->blocks(call, extents_of(inputs), extents_of(outputs));
  calls->add(call, inputs, outputs);
  return launch(operation, std::move(calls), inputs, {outputs});
}

}  // namespace ringreduce::torch_backend

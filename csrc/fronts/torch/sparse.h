// The sum of sparse (COO) tensors: every rank gathers all ranks' indices and values. If a rank has several
// tensors, all of them are summed, and all get the sum.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "engine/planning/call.h"
#include "fronts/torch/tensors.h"

namespace ringreduce::torch_backend {

// Three all-gathers: shapes and numbers of entries, then indices, then values. All ranks add in rank order
// and so get the same bits.
class SparseAllReduce : public Steps {
 public:
  SparseAllReduce(const Tensors& tensors, const c10d::ReduceOp& op, int world,
                  std::chrono::milliseconds timeout);
  bool next(Call& call) override;
  // Of tensors that differ in shape, as all ranks learn in the first all-gather.
  std::exception_ptr refusal() const override { return refusal_; }

 private:
  void rehearse() const;
  at::Tensor sum_of(const at::Tensor& indices, const at::Tensor& values, at::IntArrayRef sizes) const;
  void gather_shapes(Call& call);
  bool shapes_agree();
  void gather_indices(Call& call);
  void gather_values(Call& call);
  void add_up();

  const Tensors tensors_;
  const bool average_;
  const std::int64_t world_;
  const std::chrono::milliseconds timeout_;
  at::Tensor own_, shape_, shapes_, indices_, all_indices_, values_, all_values_;
  Extents extents_;
  std::exception_ptr refusal_;
  int step_ = 0;
};

}  // namespace ringreduce::torch_backend

#include "fronts/torch/sparse.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include "fronts/shared/group.h"
#include "fronts/torch/tensors.h"

namespace ringreduce::torch_backend {
namespace {

constexpr std::int64_t most_dimensions = 61;

}  // namespace

SparseAllReduce::SparseAllReduce(const Tensors& tensors, const c10d::ReduceOp& op, int world,
                                 std::chrono::milliseconds timeout)
    : tensors_(tensors), average_(op.op_ == c10d::ReduceOp::AVG), world_(world), timeout_(timeout) {
  TORCH_CHECK(op.op_ == c10d::ReduceOp::SUM || average_,
              "ringreduce: a sparse all_reduce supports sum and avg only, not ", named(op));
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  for (const at::Tensor& tensor : tensors_) {
    TORCH_CHECK(tensor.layout() == at::kSparse && tensor.device().is_cpu(),
                "ringreduce: a sparse all_reduce takes sparse COO tensors on the CPU");
    check_same("a sparse all_reduce", tensors_.front(), tensor);
    own_ = own_.defined() ? own_ + tensor : tensor;
  }
  TORCH_CHECK(own_.dim() <= most_dimensions, "ringreduce: a sparse all_reduce takes at most ",
              most_dimensions, " dimensions");
  own_ = own_.coalesce();
  rehearse();
}

// Throws now what torch would throw at the end, for example because it cannot add values of this type.
void SparseAllReduce::rehearse() const {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const std::vector<std::int64_t> sizes(static_cast<std::size_t>(own_.dim()), 1);
  std::vector<std::int64_t> of_values(static_cast<std::size_t>(own_.dense_dim()) + 1, 1);
  of_values[0] = 2;
  const at::Tensor values = at::zeros(of_values, own_._values().options());
  const at::Tensor indices = at::zeros({own_.sparse_dim(), 2}, at::kLong);
  at::empty(sizes, own_.options()).copy_(sum_of(indices, values, sizes));
}

at::Tensor SparseAllReduce::sum_of(const at::Tensor& indices, const at::Tensor& values,
                                   at::IntArrayRef sizes) const {
  at::Tensor sum = at::sparse_coo_tensor(indices, values, sizes, own_.options()).coalesce();
  if (average_ && !at::isIntegralType(values.scalar_type(), true)) {
    sum._values().div_(world_);
  } else if (average_) {
    sum._values().div_(world_, "trunc");  // as of dense tensors
  }
  return sum;
}

// Called after each step, when the next one's input is ready.
bool SparseAllReduce::next(Call& call) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  call = Call();
  call.collective = Collective::all_gather;
  call.timeout = timeout_;
  switch (step_++) {
    case 0:
      gather_shapes(call);
      return true;
    case 1:
      if (!shapes_agree()) return false;
      gather_indices(call);
      return true;
    case 2:
      gather_values(call);
      return true;
    default:
      add_up();
      return false;
  }
}

// A rank's line: its number of entries, its numbers of sparse and dense dimensions, and its sizes.
void SparseAllReduce::gather_shapes(Call& call) {
  shape_ = at::zeros({most_dimensions + 3}, at::kLong);
  auto line = shape_.accessor<std::int64_t, 1>();
  line[0] = own_._nnz();
  line[1] = own_.sparse_dim();
  line[2] = own_.dense_dim();
  for (std::int64_t d = 0; d < own_.dim(); ++d) line[3 + d] = own_.size(d);
  shapes_ = at::empty({world_, shape_.numel()}, at::kLong);
  call.dtype = DType::int64;
  call.count = static_cast<std::size_t>(shape_.numel());
  call.input = shape_.const_data_ptr();
  call.output = shapes_.mutable_data_ptr();
}

bool SparseAllReduce::shapes_agree() {
  const auto lines = shapes_.accessor<std::int64_t, 2>();
  for (std::int64_t r = 0; r < world_; ++r) {
    for (std::int64_t i = 1; i < shapes_.size(1); ++i) {
      if (lines[r][i] == lines[0][i]) continue;
      const std::string text = "a sparse all_reduce takes tensors of one shape; rank " + std::to_string(r) +
                               "'s differs from rank 0's";
      refusal_ = std::make_exception_ptr(Trouble(Outcome::refused, -1, text.c_str()));
      return false;
    }
  }
  return true;
}

void SparseAllReduce::gather_indices(Call& call) {
  const auto lines = shapes_.accessor<std::int64_t, 2>();
  std::vector<std::int64_t> counts;
  std::int64_t entries = 0;
  for (std::int64_t r = 0; r < world_; ++r) {
    entries += lines[r][0];
    counts.push_back(lines[r][0] * own_.sparse_dim());
  }
  indices_ = own_._indices().t().contiguous();  // an entry's indices side by side, to join blocks
  all_indices_ = at::empty({entries, own_.sparse_dim()}, at::kLong);
  extents_ = extents_of(counts, 1);
  call.dtype = DType::int64;
  call.input = indices_.const_data_ptr();
  call.output = all_indices_.mutable_data_ptr();
  call.input_extents = call.output_extents = &extents_;
}

void SparseAllReduce::gather_values(Call& call) {
  const auto lines = shapes_.accessor<std::int64_t, 2>();
  values_ = own_._values().contiguous();
  const std::int64_t entry = values_.numel() / std::max<std::int64_t>(values_.size(0), 1);
  std::int64_t length = 1;  // of an entry: a rank without entries must know it too
  for (std::int64_t d = own_.sparse_dim(); d < own_.dim(); ++d) length *= own_.size(d);
  TORCH_INTERNAL_ASSERT(values_.size(0) == 0 || entry == length);
  std::vector<std::int64_t> counts;
  for (std::int64_t r = 0; r < world_; ++r) counts.push_back(lines[r][0] * length);
  std::vector<std::int64_t> sizes = values_.sizes().vec();
  sizes[0] = all_indices_.size(0);
  all_values_ = at::empty(sizes, values_.options());
  const Elements elements = moved(values_.scalar_type());
  extents_ = extents_of(counts, elements.times);
  call.dtype = elements.dtype;
  call.input = values_.const_data_ptr();
  call.output = all_values_.mutable_data_ptr();
  call.input_extents = call.output_extents = &extents_;
}

void SparseAllReduce::add_up() {
  const at::Tensor sum = sum_of(all_indices_.t(), all_values_, own_.sizes());
  for (const at::Tensor& tensor : tensors_) tensor.copy_(sum);
}

}  // namespace ringreduce::torch_backend

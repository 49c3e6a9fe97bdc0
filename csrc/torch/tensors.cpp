#include "torch/tensors.h"

#include <algorithm>
#include <iterator>
#include <numeric>

namespace ringreduce::torch_backend {
namespace {

using c10d::ReduceOp;

// In the order of DType.
constexpr at::ScalarType scalar_types[] = {
    at::kDouble, at::kFloat,  at::kHalf,   at::kBFloat16,     at::kFloat8_e4m3fn, at::kFloat8_e5m2,
    at::kLong,   at::kInt,    at::kShort,  at::kChar,         at::kByte,          at::kBool,
    at::kUInt16, at::kUInt32, at::kUInt64, at::kComplexFloat, at::kComplexDouble};
static_assert(std::size(scalar_types) == dtype_count);

// In the order of Op.
constexpr ReduceOp::RedOpType reduce_ops[] = {ReduceOp::SUM,  ReduceOp::PRODUCT, ReduceOp::MIN,
                                              ReduceOp::MAX,  ReduceOp::BAND,    ReduceOp::BOR,
                                              ReduceOp::BXOR, ReduceOp::AVG,     ReduceOp::PREMUL_SUM};
static_assert(std::size(reduce_ops) == op_count);

// The DType or Op that is `theirs`.
template <class Enum, class Theirs, std::size_t n>
std::optional<Enum> same(const Theirs (&all)[n], Theirs theirs) {
  const auto* const found = std::find(std::begin(all), std::end(all), theirs);
  return found == std::end(all) ? std::nullopt : std::optional(static_cast<Enum>(found - all));
}

std::optional<DType> same_type(at::ScalarType type) {
  return same<DType>(scalar_types, type);
}

// Whether its values lie in its memory one behind the other, as they are.
bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

// Whether the tensors' values lie one behind the other in memory, and in one storage.
bool consecutive(const Tensors& tensors) {
  const at::Tensor* before = nullptr;
  for (const at::Tensor& tensor : tensors) {
    if (!is_plain(tensor)) return false;
    if (before) {
      if (!tensor.is_alias_of(*before)) return false;
      if (tensor.storage_offset() != before->storage_offset() + before->numel()) return false;
    }
    before = &tensor;
  }
  return true;
}

std::int64_t total(const Tensors& tensors) {
  return std::accumulate(tensors.begin(), tensors.end(), std::int64_t{0},
                         [](std::int64_t sum, const at::Tensor& tensor) { return sum + tensor.numel(); });
}

at::Tensor span(const Tensors& tensors) {
  const at::Tensor& first = tensors.front();
  return first.as_strided({total(tensors)}, {1}, first.storage_offset());
}

double factor_of(const ReduceOp& premul_sum) {
  const auto* supplement = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(premul_sum.supplement_.get());
  TORCH_CHECK(supplement, "ringreduce: PREMUL_SUM needs a factor");
  return supplement->tensor_factor.defined() ? supplement->tensor_factor.item().toDouble()
                                             : supplement->double_factor;
}

}  // namespace

Elements moved(at::ScalarType type) {
  if (const auto same = same_type(type)) return {*same, 1};
  return {DType::uint8, c10::elementSize(type)};
}

Elements combined(at::ScalarType type, const ReduceOp& op) {
  const auto same = same_type(type);
  TORCH_CHECK(same, "ringreduce: reductions are not defined for dtype ", c10::toString(type));
  TORCH_CHECK(supports(*same, op_of(op)), "ringreduce: op '", name_of(op_of(op)),
              "' is not defined for dtype ", name_of(*same));
  return {*same, 1};
}

Op op_of(const ReduceOp& op) {
  const auto found = same<Op>(reduce_ops, op.op_);
  TORCH_CHECK(found, "ringreduce: unknown reduce op ", static_cast<int>(op.op_));
  return *found;
}

void set_op(Call& call, const ReduceOp& op) {
  call.op = op_of(op);
  if (op.op_ == ReduceOp::PREMUL_SUM) call.factor = factor_of(op);
}

at::Tensor joined(const Tensors& tensors) {
  if (consecutive(tensors)) return span(tensors);
  std::vector<at::Tensor> parts;
  parts.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) parts.push_back(tensor.reshape({-1}));
  return at::cat(parts);
}

at::Tensor room_for(const Tensors& tensors) {
  if (tensors.empty()) return {};
  if (consecutive(tensors)) return span(tensors);
  return at::empty({total(tensors)}, tensors.front().options().memory_format(std::nullopt));
}

at::Tensor room_for(const at::Tensor& tensor) {
  if (is_plain(tensor)) return tensor;
  return at::empty({tensor.numel()}, tensor.options().memory_format(std::nullopt));
}

bool is_own_memory(const Tensors& tensors, const at::Tensor& flat) {
  return !tensors.empty() && consecutive(tensors) && tensors.front().is_alias_of(flat);
}

Extents extents_of(const std::vector<std::int64_t>& counts, std::size_t times) {
  Extents extents;
  std::size_t offset = 0;
  for (const std::int64_t n : counts) {
    extents.offset.push_back(offset);
    extents.count.push_back(static_cast<std::size_t>(n) * times);
    offset += extents.count.back();
  }
  return extents;
}

Extents extents_of(const Tensors& tensors, std::size_t times) {
  std::vector<std::int64_t> counts;
  for (const at::Tensor& tensor : tensors) counts.push_back(tensor.numel());
  return extents_of(counts, times);
}

bool all_equal(const Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const at::Tensor& tensor) { return tensor.numel() == tensors.front().numel(); });
}

void check_dense(const char* what, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.device().is_cpu() || tensor.device().is_cuda(), "ringreduce: ", what,
              " takes tensors on the CPU or a CUDA GPU, not one on ", tensor.device());
  TORCH_CHECK(tensor.layout() == at::kStrided, "ringreduce: ", what, " takes dense tensors, not ",
              tensor.layout());
}

void check_together(const char* what, const at::Tensor& one, const at::Tensor& other) {
  TORCH_CHECK(one.device() == other.device(), "ringreduce: ", what,
              " takes tensors on one device, not on both ", one.device(), " and ", other.device());
}

const at::Tensor& only(const char* what, const Tensors& tensors) {
  TORCH_CHECK(tensors.size() == 1, "ringreduce: ", what, " takes one tensor, not ", tensors.size());
  check_dense(what, tensors.front());
  return tensors.front();
}

void check_list(const char* what, const Tensors& tensors, std::size_t length, const at::Tensor& like) {
  TORCH_CHECK(tensors.size() == length, "ringreduce: ", what, " takes a list of ", length,
              " tensors, one for each rank, not ", tensors.size());
  for (const at::Tensor& tensor : tensors) {
    check_dense(what, tensor);
    check_together(what, like, tensor);
    TORCH_CHECK(tensor.scalar_type() == like.scalar_type(), "ringreduce: ", what,
                " takes tensors of one dtype, not both ", tensor.scalar_type(), " and ", like.scalar_type());
  }
}

void check_pair(const char* what, const at::Tensor& whole, const at::Tensor& part, int world) {
  check_dense(what, whole);
  check_dense(what, part);
  check_together(what, whole, part);
  TORCH_CHECK(whole.scalar_type() == part.scalar_type(), "ringreduce: ", what,
              " takes tensors of one dtype, not both ", whole.scalar_type(), " and ", part.scalar_type());
  TORCH_CHECK(whole.numel() == part.numel() * world, "ringreduce: ", what, " with ", world,
              " ranks takes a tensor of ", part.numel() * world, " elements beside one of ", part.numel(),
              ", not one of ", whole.numel());
}

}  // namespace ringreduce::torch_backend

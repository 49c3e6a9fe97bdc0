#include "fronts/torch/tensors.h"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "fronts/shared/tables.h"

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
                                              ReduceOp::BXOR, ReduceOp::AVG};
static_assert(std::size(reduce_ops) == op_count);

std::optional<DType> same_type(at::ScalarType type) {
  return same<DType>(scalar_types, type);
}

// Whether its values lie in memory in order, unmodified.
bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor empty_like(const at::Tensor& tensor, std::int64_t elements) {
  return at::empty({elements}, tensor.options().memory_format(std::nullopt));
}

at::Tensor span(const Tensors& tensors) {
  const at::Tensor& first = tensors.front();
  return first.as_strided({total(tensors)}, {1}, first.storage_offset());
}

Op op_of(const ReduceOp& op) {
  const bool scales = op.op_ == ReduceOp::PREMUL_SUM;
  const auto found = same<Op>(reduce_ops, scales ? ReduceOp::SUM : op.op_);
  TORCH_CHECK(found, "ringreduce: unknown reduce op ", static_cast<int>(op.op_));
  return *found;
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
  if (type == at::kComplexHalf) return {DType::float16, 2};  // whose sums are those of the parts
  return {DType::uint8, c10::elementSize(type)};
}

std::string named(const ReduceOp& op) {
  return std::string(name_of(op_of(op))) + (op.op_ == ReduceOp::PREMUL_SUM ? " with a factor" : "");
}

Call moving(Collective collective, const at::Tensor& tensor) {
  const Elements elements = moved(tensor.scalar_type());
  Call call;
  call.collective = collective;
  call.dtype = elements.dtype;
  call.count = count(tensor, elements);
  return call;
}

Call combining(Collective collective, const at::Tensor& tensor, const ReduceOp& op) {
  Call call = moving(collective, tensor);
  call.op = op_of(op);
  const bool of_parts =
      tensor.scalar_type() == at::kComplexHalf && (call.op == Op::sum || call.op == Op::avg);
  TORCH_CHECK(same_type(tensor.scalar_type()) || of_parts,
              "ringreduce: reductions are not defined for dtype ", c10::toString(tensor.scalar_type()));
  TORCH_CHECK(supports(call.dtype, call.op), "ringreduce: op '", name_of(call.op),
              "' is not defined for dtype ", name_of(call.dtype));
  if (op.op_ == ReduceOp::PREMUL_SUM) {
    TORCH_CHECK(takes_factor(call.dtype), "ringreduce: PREMUL_SUM is not defined for dtype ",
                name_of(call.dtype));
    call.factor = factor_of(op);
  }
  return call;
}

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

bool all_equal(const Tensors& tensors) {
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const at::Tensor& tensor) { return tensor.numel() == tensors.front().numel(); });
}

at::Tensor joined(const at::Tensor& tensor) {
  return tensor.contiguous();
}

at::Tensor joined(const Tensors& tensors) {
  if (consecutive(tensors)) return span(tensors);
  std::vector<at::Tensor> parts;
  parts.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) parts.push_back(tensor.reshape({-1}));
  return at::cat(parts);
}

at::Tensor room_for(const at::Tensor& tensor) {
  return is_plain(tensor) ? tensor : empty_like(tensor, tensor.numel());
}

at::Tensor room_for(const Tensors& tensors) {
  return consecutive(tensors) ? span(tensors) : empty_like(tensors.front(), total(tensors));
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

Extents extents_of(const Tensors& tensors) {
  std::vector<std::int64_t> counts;
  for (const at::Tensor& tensor : tensors) counts.push_back(tensor.numel());
  return extents_of(counts, moved(tensors.front().scalar_type()).times);
}

void check_dense(const char* what, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.device().is_cpu() || tensor.device().is_cuda(), "ringreduce: ", what,
              " takes tensors on the CPU or a CUDA GPU, not one on ", tensor.device());
  TORCH_CHECK(tensor.layout() == at::kStrided, "ringreduce: ", what, " takes dense tensors, not ",
              tensor.layout());
  const std::size_t reach = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(),
                                                             tensor.element_size(), tensor.storage_offset());
  TORCH_CHECK(tensor.numel() == 0 || reach <= tensor.storage().nbytes(), "ringreduce: ", what,
              " takes tensors with memory for all elements, but the storage of one has been resized to ",
              tensor.storage().nbytes(), " bytes");
}

void check_writable(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.numel() == 0 || at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
              "ringreduce: several elements of an output of ", tensor.sizes(),
              " share memory, as after expand(): clone() it before the call");
}

void check_together(const char* what, const at::Tensor& one, const at::Tensor& other) {
  TORCH_CHECK(one.device() == other.device(), "ringreduce: ", what,
              " takes tensors on one device, not on both ", one.device(), " and ", other.device());
}

void check_alike(const char* what, const at::Tensor& one, const at::Tensor& other) {
  check_dense(what, other);
  check_together(what, one, other);
  TORCH_CHECK(one.scalar_type() == other.scalar_type(), "ringreduce: ", what,
              " takes tensors of one dtype, not both ", one.scalar_type(), " and ", other.scalar_type());
}

void check_same(const char* what, const at::Tensor& one, const at::Tensor& other) {
  TORCH_CHECK(one.scalar_type() == other.scalar_type() && one.sizes() == other.sizes(), "ringreduce: ", what,
              " takes tensors of one size and dtype, not both ", one.sizes(), " of ", one.scalar_type(),
              " and ", other.sizes(), " of ", other.scalar_type());
}

void check_equal(const char* what, const Tensors& tensors) {
  TORCH_CHECK(!tensors.empty(), "ringreduce: ", what, " takes at least one tensor");
  for (const at::Tensor& tensor : tensors) {
    check_alike(what, tensors.front(), tensor);
    check_same(what, tensors.front(), tensor);
  }
}

const at::Tensor& only(const char* what, const Tensors& tensors) {
  TORCH_CHECK(tensors.size() == 1, "ringreduce: ", what, " takes one tensor, not ", tensors.size());
  check_dense(what, tensors.front());
  return tensors.front();
}

void check_list(const char* what, const Tensors& tensors, std::size_t length, const at::Tensor& like) {
  TORCH_CHECK(tensors.size() == length, "ringreduce: ", what, " takes a list of ", length,
              " tensors, one for each rank, not ", tensors.size());
  for (const at::Tensor& tensor : tensors) check_alike(what, like, tensor);
}

void check_pair(const char* what, const at::Tensor& whole, const at::Tensor& part, int world) {
  check_dense(what, whole);
  check_alike(what, whole, part);
  TORCH_CHECK(whole.numel() == part.numel() * world, "ringreduce: ", what, " with ", world,
              " ranks takes a tensor of ", part.numel() * world, " elements beside one of ", part.numel(),
              ", not one of ", whole.numel());
}

}  // namespace ringreduce::torch_backend

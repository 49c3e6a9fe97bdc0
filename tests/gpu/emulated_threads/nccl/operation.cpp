#include "operation.h"

#include <cstring>
#include <stdexcept>

#include "reduce/reduce.h"

namespace ringreduce::emulated {
namespace {

DType dtype_of(nccl::DataType type) {
  constexpr DType in_order[] = {DType::int8,    DType::uint8,    DType::int32,       DType::uint32,
                                DType::int64,   DType::uint64,   DType::float16,     DType::float32,
                                DType::float64, DType::bfloat16, DType::float8_e4m3, DType::float8_e5m2};
  if (type > nccl::float8_e5m2) throw std::invalid_argument("there is no such type");
  return in_order[type];
}

Op op_of(nccl::ReduceOp op) {
  constexpr Op in_order[] = {Op::sum, Op::prod, Op::max, Op::min, Op::avg};
  return op <= nccl::avg ? in_order[op] : Op::sum;
}

using Values = std::vector<char>;

// A rank's own, multiplied by its factor.
Values values_of(const Operation& part, std::size_t begin, std::size_t count) {
  const std::size_t element = size_of(part.type);
  Values values(part.from + begin * element, part.from + (begin + count) * element);
  if (part.factor.empty()) return values;
  Values factors;
  for (std::size_t i = 0; i < count; ++i) {
    factors.insert(factors.end(), part.factor.begin(), part.factor.end());
  }
  void* const to = values.data();
  const void* const both[] = {values.data(), factors.data()};
  combine_for(dtype_of(part.type), Op::prod)(&to, 1, both, 2, count, 1);
  return values;
}

// Of all ranks, in rank order.
Values reduced(const std::vector<const Operation*>& parts, std::size_t begin, std::size_t count) {
  std::vector<Values> values;
  std::vector<const void*> sources;
  for (const Operation* part : parts) values.push_back(values_of(*part, begin, count));
  for (const Values& one : values) sources.push_back(one.data());
  Values result(count * size_of(parts[0]->type));
  void* const to = result.data();
  combine_for(dtype_of(parts[0]->type), op_of(parts[0]->op))(&to, 1, sources.data(),
                                                             static_cast<int>(sources.size()), count,
                                                             1.0 / static_cast<double>(parts.size()));
  return result;
}

}  // namespace

std::size_t size_of(nccl::DataType type) {
  return ringreduce::size_of(dtype_of(type));
}

bool Operation::fits(const Operation& other) const {
  return kind == other.kind && count == other.count && type == other.type && peer == other.peer &&
         factor.empty() == other.factor.empty() && (op == other.op || !factor.empty());
}

void perform(const std::vector<const Operation*>& parts) {
  using Kind = Operation::Kind;
  const Operation& any = *parts[0];
  const std::size_t bytes = any.count * size_of(any.type);
  std::vector<Values> results;  // all are there before any is written: it may be in place
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    if (any.kind == Kind::broadcast) {
      results.emplace_back(parts[any.peer]->from, parts[any.peer]->from + bytes);
    } else if (any.kind == Kind::all_gather) {
      Values& all = results.emplace_back();
      for (const Operation* part : parts) all.insert(all.end(), part->from, part->from + bytes);
    } else {
      results.push_back(reduced(parts, any.kind == Kind::reduce_scatter ? rank * any.count : 0, any.count));
    }
  }
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    if (any.kind == Kind::reduce && static_cast<int>(rank) != any.peer) continue;
    std::memcpy(parts[rank]->to, results[rank].data(), results[rank].size());
  }
}

}  // namespace ringreduce::emulated

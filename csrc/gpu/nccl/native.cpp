#include "gpu/nccl/native.h"

#include <cstdint>
#include <iterator>
#include <optional>

#include "engine/planning/plan.h"
#include "reduce/identity.h"
#include "reduce/reduce.h"

namespace ringreduce {
namespace {

bool has(Collective collective) {
  return combines_all(collective) || ends_alike(collective);
}

bool is_float8(DType dtype) {
  return kind_of(dtype) == NumberKind::floating && size_of(dtype) == 1;
}

// An operator that multiplies by this rank's factor first; destroyed with this object.
class Scaling {
 public:
  Scaling(const Call& call, NcclGroup& group) : group_(group) {
    std::uint64_t factor = identity_of(call.dtype, Op::prod);
    void* const scaled = &factor;
    const void* const from = &factor;
    combine_for(call.dtype, scaling)(&scaled, 1, &from, 1, 1, *call.factor);
    group_.check(group_.library().create_premul_sum(&op_, &factor, *nccl::number_of(call.dtype),
                                                    nccl::in_host_memory, group_.comm()),
                 "making an operator for the factor");
  }
  ~Scaling() { group_.library().destroy_op(op_, group_.comm()); }
  Scaling(const Scaling&) = delete;
  Scaling& operator=(const Scaling&) = delete;
  nccl::ReduceOp op() const { return op_; }

 private:
  NcclGroup& group_;
  nccl::ReduceOp op_ = nccl::sum;
};

class OwnCall {
 public:
  OwnCall(const Call& call, NcclGroup& group, int rank, void* stream)
      : call_(call), group_(group), nccl_(group.library()), rank_(rank), stream_(stream) {
    // Data that is only moved may have any type.
    if (!reduces(call.collective)) {
      bytes_ = size_of(call.dtype);
      return;
    }
    type_ = *nccl::number_of(call.dtype);
    op_ = *nccl::number_of(call.op);
    if (call.factor) op_ = scaling_.emplace(call, group).op();
  }

  nccl::Result run() {
    switch (call_.collective) {
      case Collective::all_reduce:
        return nccl_.all_reduce(call_.input, call_.output, call_.count, type_, op_, group_.comm(), stream_);
      case Collective::reduce_scatter:
        return nccl_.reduce_scatter(call_.input, call_.output, call_.count, type_, op_, group_.comm(),
                                    stream_);
      case Collective::all_gather:
        return nccl_.all_gather(call_.input, call_.output, call_.count * bytes_, type_, group_.comm(),
                                stream_);
      case Collective::broadcast:
        return broadcast(call_.input, call_.output, call_.count, call_.root);
      default:
        return reduce(call_.input, call_.output, call_.count, call_.root);
    }
  }

  // Runs blocks of different lengths one after the other, each as if its rank were the root.
  void run_uneven() {
    const Extents& blocks = *call_.input_extents;
    const std::size_t element = size_of(call_.dtype);
    for (std::size_t root = 0; root < blocks.count.size(); ++root) {
      if (blocks.count[root] == 0) continue;
      const bool own = static_cast<int>(root) == rank_;
      const std::size_t at = blocks.offset[root] * element;
      const auto* const input = static_cast<const std::byte*>(call_.input);
      auto* const output = static_cast<std::byte*>(call_.output);
      const int by = static_cast<int>(root);
      group_.check(call_.collective == Collective::all_gather
                       ? broadcast(own ? input : output + at, output + at, blocks.count[root], by)
                       : reduce(input + at, own ? output : nullptr, blocks.count[root], by),
                   "a block");
    }
  }

 private:
  nccl::Result broadcast(const void* from, void* to, std::size_t count, int root) {
    return nccl_.broadcast(from, to, count * bytes_, type_, root, group_.comm(), stream_);
  }
  nccl::Result reduce(const void* from, void* to, std::size_t count, int root) {
    return nccl_.reduce(from, to, count, type_, op_, root, group_.comm(), stream_);
  }

  const Call& call_;
  NcclGroup& group_;
  const NcclLibrary& nccl_;
  const int rank_;
  void* const stream_;
  nccl::DataType type_ = nccl::uint8;
  std::size_t bytes_ = 1;  // of an element, in those of type_
  nccl::ReduceOp op_ = nccl::sum;
  std::optional<Scaling> scaling_;
};

}  // namespace

void check_that_nccl_has(const Call& call, const NcclLibrary& nccl) {
  const auto lacks = [](const std::string& what, const char* what_it_has) {
    return InvalidArgument("algorithm 'nccl' has no " + what + "; it has " + what_it_has);
  };
  if (!has(call.collective)) {
    throw lacks(name_of(call.collective), "all_reduce, reduce_scatter, all_gather, broadcast and reduce");
  }
  if (call.wire != Encoding::none) {
    throw InvalidArgument("algorithm 'nccl' has no wire formats; our own algorithms have, also over NCCL");
  }
  if (!reduces(call.collective)) return;
  if (!nccl::number_of(call.op)) {
    throw lacks(std::string("op '") + name_of(call.op) + "'", "sum, avg, prod, min and max, and factors");
  }
  if (!nccl::number_of(call.dtype)) {
    throw lacks(std::string("reductions of dtype ") + name_of(call.dtype),
                "float64, float32, float16, bfloat16, float8, int64, int32, int8, uint64, uint32 and uint8");
  }
  if (is_float8(call.dtype) && nccl.version() < nccl::float8_since) {
    throw InvalidArgument("algorithm 'nccl' has no reductions of dtype " + std::string(name_of(call.dtype)) +
                          " before NCCL 2.24; this is NCCL " + nccl.version_in_words());
  }
}

void run_by_nccl(const Call& call, NcclGroup& group, int rank, void* stream, const NcclGroup::Tick& tick) {
  OwnCall own(call, group, rank, stream);
  if (!call.input_extents) {
    if (call.count > 0) group.complete(own.run(), name_of(call.collective), tick);
    return;
  }
  NcclTogether together(group);
  own.run_uneven();
  together.end(name_of(call.collective), tick);
}

}  // namespace ringreduce

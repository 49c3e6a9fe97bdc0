// How ranks that read each other's arrays quantise what they read. A rank's own values stay exact where they
// would not travel, and a result that several ranks hold is rounded as it would be in a message: the bits are
// those of the algorithms in which every rank sends to every other.
#include <algorithm>

#include "engine/gpu/events/runner.h"
#include "engine/gpu/kernel_library.h"

namespace ringreduce {
namespace {

constexpr std::size_t span_alignment = 256;
constexpr std::size_t least_share = 16;  // values: as in make_geometry()

std::size_t aligned(std::size_t bytes) {
  return (bytes + span_alignment - 1) / span_alignment * span_alignment;
}

// Whether ranks send each other blocks of their own; otherwise all read the same.
bool sends_blocks(Collective collective) {
  return collective == Collective::reduce_scatter || collective == Collective::scatter ||
         collective == Collective::all_to_all;
}

}  // namespace

// One rank's view of a call.
struct EventRunner::Coding {
  const Call& call;
  const int world, rank;
  void* const stream;
  const KernelLibrary& kernels = KernelLibrary::get();
  // A factor applies to float32 values, which 16-bit floats could not hold.
  const bool scales = reduces(call.collective) && call.op == Op::premul_sum;
  const bool widens = scales && call.dtype != DType::float32;
  const DType plain = widens ? DType::float32 : call.dtype;

  std::size_t count_of(const Extents* extents, int block) const {
    return extents ? extents->count[block] : call.count;
  }
  std::size_t begin_of(const Extents* extents, int block) const {
    return extents ? extents->offset[block] : call.count * static_cast<std::size_t>(block);
  }
  std::size_t size() const { return size_of(call.dtype); }
  std::size_t input_count() const { return bytes_of_input(call, world, rank) / size(); }

  void run(Encoding wire, DType type, Op op, double factor, std::uint32_t encoded_sources,
           std::uint32_t encoded_targets, bool quantize, const std::vector<void*>& targets,
           const std::vector<const void*>& sources, std::size_t count) const {
    if (count == 0) return;
    CudaLibrary::check(kernels.combine_coded(static_cast<int>(wire), static_cast<int>(type),
                                             static_cast<int>(op), encoded_sources, encoded_targets, quantize,
                                             targets.data(), static_cast<int>(targets.size()), sources.data(),
                                             static_cast<int>(sources.size()), count, factor, stream, 0));
  }
  void encode(void* to, const void* from, std::size_t count) const {
    run(call.wire, plain, Op::sum, 1, 0, 1, false, {to}, {from}, count);
  }
  void decode(void* to, const void* from, std::size_t count) const {
    run(call.wire, call.dtype, Op::sum, 1, 1, 0, false, {to}, {from}, count);
  }
};

// Kept: the encoded blocks; then this rank's exact values, if they are scaled; then room for a result that is
// not rounded to 16 bits yet.
const void* EventRunner::encoded_input(const Call& call, void* stream) {
  const Coding c{call, world_, rank_, stream};
  const bool blocks = sends_blocks(call.collective);
  const int spans = blocks ? world_ : 1;
  const bool reads_input = !blocks || call.collective != Collective::scatter || call.root == rank_;
  std::size_t bytes = 0;
  std::vector<std::size_t> counts;
  for (int b = 0; b < spans && reads_input; ++b) {
    own_.blocks[b] = bytes;
    counts.push_back(blocks ? c.count_of(call.input_extents, b) : c.input_count());
    bytes += aligned(encoded_bytes(call.wire, counts.back()));
  }
  const std::size_t exact_bytes = c.scales ? aligned(c.input_count() * sizeof(float)) : 0;
  char* const kept = room_to_keep(bytes + 2 * exact_bytes);
  exact_ = static_cast<const char*>(call.input);
  if (c.scales) {
    exact_ = kept + bytes;
    result_ = kept + bytes + exact_bytes;
    void* const to = kept + bytes;
    if (c.widens) {
      c.run(cast_to(call.dtype), DType::float32, Op::premul_sum, call.factor, 1, 0, false, {to}, {call.input},
            c.input_count());
    } else {
      c.kernels.scale_span(call.dtype, to, call.input, c.input_count(), call.factor, stream);
    }
  }
  for (std::size_t b = 0; b < counts.size(); ++b) {
    const std::size_t begin = blocks ? c.begin_of(call.input_extents, static_cast<int>(b)) : 0;
    c.encode(kept + own_.blocks[b], exact_ + begin * size_of(c.plain), counts[b]);
  }
  return kept;
}

// This rank's share of an all-reduce, which whole blocks of the format come before, or its own block; all of
// it on a reduction's root.
void EventRunner::combine_coded(const Coding& c) const {
  const Call& call = c.call;
  const bool to_all = call.collective == Collective::all_reduce;
  const bool of_blocks = call.collective == Collective::reduce_scatter;
  std::size_t begin = of_blocks ? c.begin_of(call.input_extents, rank_) : 0;
  std::size_t count = of_blocks ? c.count_of(call.input_extents, rank_) : call.count;
  if (to_all) {
    const auto world = static_cast<std::size_t>(world_);
    const std::size_t unit = std::max(least_share, encoded_unit(call.wire));
    const std::size_t each = ((call.count + world - 1) / world + unit - 1) / unit * unit;
    begin = std::min(each * static_cast<std::size_t>(rank_), call.count);
    count = std::min(each, call.count - begin);
  }
  std::vector<const void*> sources;
  std::vector<void*> targets;
  for (int rank = 0; rank < world_; ++rank) {
    const char* const message = arrays_[rank].input + (of_blocks ? arrays_[rank].blocks[rank_] : 0) +
                                (to_all ? encoded_bytes(call.wire, begin) : 0);
    sources.push_back(rank == rank_ ? exact_ + begin * size_of(c.plain) : message);
    if (to_all || rank == rank_) targets.push_back(arrays_[rank].output + (to_all ? begin * c.size() : 0));
  }
  const std::uint32_t others = ((std::uint64_t{1} << world_) - 1) & ~(std::uint64_t{1} << rank_);
  const Op op = c.scales ? Op::sum : call.op;
  const double factor = op == Op::avg ? 1.0 / world_ : 1;
  if (!c.widens) return c.run(call.wire, c.plain, op, factor, others, 0, to_all, targets, sources, count);
  c.run(call.wire, c.plain, op, factor, others, 0, to_all, {result_}, sources, count);
  const std::uint32_t all_targets = (std::uint64_t{1} << targets.size()) - 1;
  c.run(cast_to(call.dtype), DType::float32, Op::sum, 1, 0, all_targets, false, targets, {result_}, count);
}

void EventRunner::combine_and_copy_coded(const Call& call, void* stream) const {
  const Coding c{call, world_, rank_, stream};
  const Arrays& own = arrays_[rank_];
  // This rank's own block stays as it is.
  const auto take = [&](int from, char* to, std::size_t exact_at, std::size_t count) {
    if (from == rank_) return c.kernels.copy_span(to, exact_ + exact_at * c.size(), count * c.size(), stream);
    const bool blocks = sends_blocks(call.collective);
    c.decode(to, arrays_[from].input + (blocks ? arrays_[from].blocks[rank_] : 0), count);
  };
  const bool is_root = call.root == rank_;
  switch (call.collective) {
    case Collective::all_reduce:
    case Collective::reduce_scatter:
      return combine_coded(c);
    case Collective::reduce:
      return is_root ? combine_coded(c) : void();
    case Collective::broadcast:
      return c.decode(own.output, arrays_[call.root].input, call.count);
    case Collective::scatter:
      return take(call.root, own.output, c.begin_of(call.input_extents, rank_),
                  c.count_of(call.input_extents, rank_));
    case Collective::all_gather:
    case Collective::gather:
      for (int rank = 0; rank < world_; ++rank) {
        char* const to = own.output + c.begin_of(call.output_extents, rank) * c.size();
        const std::size_t count = c.count_of(call.output_extents, rank);
        if (call.collective == Collective::all_gather) c.decode(to, arrays_[rank].input, count);
        if (call.collective == Collective::gather && is_root) take(rank, to, 0, count);
      }
      return;
    default:  // all_to_all; its own block first, which may lie where another arrives
      for (int i = 0; i < world_; ++i) {
        const int rank = (rank_ + i) % world_;
        take(rank, own.output + c.begin_of(call.output_extents, rank) * c.size(),
             c.begin_of(call.input_extents, rank_), c.count_of(call.output_extents, rank));
      }
  }
}

}  // namespace ringreduce

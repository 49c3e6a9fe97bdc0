// The parts of libnccl that are used, in types of our own, because this library is built without NCCL's
// header. Sizes, numbers and signatures are those of NCCL 2.18 and all later 2.x; `make nccl-header` compares
// them with a real nccl.h. A stream is a cudaStream_t.
#pragma once

#include <climits>
#include <cstddef>
#include <optional>

#include "reduce/dtype.h"

namespace ringreduce::nccl {

enum Result : unsigned {
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
};

enum DataType : unsigned {
  int8 = 0,
  uint8 = 1,
  int32 = 2,
  uint32 = 3,
  int64 = 4,
  uint64 = 5,
  float16 = 6,
  float32 = 7,
  float64 = 8,
  bfloat16 = 9,
  float8_e4m3 = 10,
  float8_e5m2 = 11,
};

enum ReduceOp : unsigned { sum = 0, prod = 1, max = 2, min = 3, avg = 4 };

// Those of the engine, by NCCL's numbers.
inline constexpr DType dtypes[] = {DType::int8,    DType::uint8,    DType::int32,       DType::uint32,
                                   DType::int64,   DType::uint64,   DType::float16,     DType::float32,
                                   DType::float64, DType::bfloat16, DType::float8_e4m3, DType::float8_e5m2};
inline constexpr Op ops[] = {Op::sum, Op::prod, Op::max, Op::min, Op::avg};

template <class Number, class Ours, std::size_t count>
constexpr std::optional<Number> number_in(const Ours (&known)[count], Ours one) {
  for (std::size_t i = 0; i < count; ++i) {
    if (known[i] == one) return static_cast<Number>(i);
  }
  return std::nullopt;
}
constexpr std::optional<DataType> number_of(DType dtype) {
  return number_in<DataType>(dtypes, dtype);
}
constexpr std::optional<ReduceOp> number_of(Op op) {
  return number_in<ReduceOp>(ops, op);
}
static_assert(number_of(DType::float8_e5m2) == float8_e5m2 && number_of(Op::avg) == avg);

enum Residence : unsigned { in_device_memory = 0, in_host_memory = 1 };

struct UniqueId {
  char internal[128];
};

inline constexpr int unset = INT_MIN;
inline constexpr int most_ctas = 32;  // that all versions take
inline constexpr int oldest_version = 21800;
inline constexpr int float8_since = 22400;

// The oldest version's, which later ones accept, as `size` and `version` name it. The rest was padding there,
// which later versions read as traffic_class.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = oldest_version;
  int blocking = unset;
  int cga_cluster_size = unset;
  int min_ctas = unset;
  int max_ctas = unset;
  const char* net_name = nullptr;
  int split_share = unset;
  int traffic_class = unset;
};

// Where versions since 2.27 have CTAPolicy, and its flag for copy engines.
inline constexpr std::size_t cta_policy_at = 60;
inline constexpr int cta_policy_zero = 2;

using Comm = struct Opaque*;
using Stream = void*;
using Window = struct OpaqueWindow*;
inline constexpr int symmetric_window = 1;  // memory at the same place of every rank's

using GetVersion = Result(int* version);
using GetErrorString = const char*(Result result);
using GetLastError = const char*(Comm comm);
using GetUniqueId = Result(UniqueId* id);
using CommInitRankConfig = Result(Comm* comm, int ranks, UniqueId id, int rank, Config* config);
using CommGetAsyncError = Result(Comm comm, Result* error);
using CommFinalize = Result(Comm comm);
using CommDestroy = Result(Comm comm);
using CommAbort = Result(Comm comm);
using CommRegister = Result(Comm comm, void* memory, std::size_t bytes, void** handle);
using CommDeregister = Result(Comm comm, void* handle);
using GroupStart = Result();
using GroupEnd = Result();
using Send = Result(const void* from, std::size_t count, DataType type, int peer, Comm comm, Stream stream);
using Recv = Result(void* to, std::size_t count, DataType type, int peer, Comm comm, Stream stream);
using AllReduce = Result(const void* from, void* to, std::size_t count, DataType type, ReduceOp op, Comm comm,
                         Stream stream);
using ReduceScatter = AllReduce;  // `count` is of a block
using AllGather = Result(const void* from, void* to, std::size_t count, DataType type, Comm comm,
                         Stream stream);
using Broadcast = Result(const void* from, void* to, std::size_t count, DataType type, int root, Comm comm,
                         Stream stream);
using Reduce = Result(const void* from, void* to, std::size_t count, DataType type, ReduceOp op, int root,
                      Comm comm, Stream stream);
using RedOpCreatePreMulSum = Result(ReduceOp* op, void* scalar, DataType type, Residence residence,
                                    Comm comm);
using RedOpDestroy = Result(ReduceOp op, Comm comm);

// Used by csrc/fronts/nccl only, which stands in for NCCL's library.
using CommInitRank = Result(Comm* comm, int ranks, UniqueId id, int rank);
using CommInitRankScalable = Result(Comm* comm, int ranks, int rank, int ids, UniqueId* id, Config* config);
using CommInitAll = Result(Comm* comms, int devices, const int* device);
using CommSplit = Result(Comm comm, int color, int key, Comm* part, Config* config);
using CommShrink = Result(Comm comm, int* excluded, int count, Comm* part, Config* config, int flags);
using CommCount = Result(Comm comm, int* count);
using CommUserRank = CommCount;
using CommCuDevice = CommCount;
using CommWindowRegister = Result(Comm comm, void* memory, std::size_t bytes, Window* window, int flags);
using CommWindowDeregister = Result(Comm comm, Window window);
using MemAlloc = Result(void** memory, std::size_t bytes);
using MemFree = Result(void* memory);
using Bcast = Result(void* data, std::size_t count, DataType type, int root, Comm comm, Stream stream);
using AlltoAll = AllGather;  // `count` is of a block in these three
using Gather = Broadcast;
using Scatter = Broadcast;

}  // namespace ringreduce::nccl

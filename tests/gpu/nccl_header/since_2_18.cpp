// Of all versions that serve. `make nccl-header` compiles it, and runs nothing.
#include "alike.h"

static_assert(Alike<ours::GetVersion, decltype(ncclGetVersion)>::value);
static_assert(Alike<ours::GetErrorString, decltype(ncclGetErrorString)>::value);
static_assert(Alike<ours::GetLastError, decltype(ncclGetLastError)>::value);
static_assert(Alike<ours::GetUniqueId, decltype(ncclGetUniqueId)>::value);
static_assert(Alike<ours::CommInitRankConfig, decltype(ncclCommInitRankConfig)>::value);
static_assert(Alike<ours::CommGetAsyncError, decltype(ncclCommGetAsyncError)>::value);
static_assert(Alike<ours::CommFinalize, decltype(ncclCommFinalize)>::value);
static_assert(Alike<ours::CommDestroy, decltype(ncclCommDestroy)>::value);
static_assert(Alike<ours::CommAbort, decltype(ncclCommAbort)>::value);
static_assert(Alike<ours::GroupStart, decltype(ncclGroupStart)>::value);
static_assert(Alike<ours::GroupEnd, decltype(ncclGroupEnd)>::value);
static_assert(Alike<ours::Send, decltype(ncclSend)>::value);
static_assert(Alike<ours::Recv, decltype(ncclRecv)>::value);
static_assert(Alike<ours::AllReduce, decltype(ncclAllReduce)>::value);
static_assert(Alike<ours::ReduceScatter, decltype(ncclReduceScatter)>::value);
static_assert(Alike<ours::AllGather, decltype(ncclAllGather)>::value);
static_assert(Alike<ours::Broadcast, decltype(ncclBroadcast)>::value);
static_assert(Alike<ours::Reduce, decltype(ncclReduce)>::value);
static_assert(Alike<ours::RedOpCreatePreMulSum, decltype(ncclRedOpCreatePreMulSum)>::value);
static_assert(Alike<ours::RedOpDestroy, decltype(ncclRedOpDestroy)>::value);

static_assert(is_same(ours::success, ncclSuccess));
static_assert(is_same(ours::unhandled_cuda_error, ncclUnhandledCudaError));
static_assert(is_same(ours::system_error, ncclSystemError));
static_assert(is_same(ours::internal_error, ncclInternalError));
static_assert(is_same(ours::invalid_argument, ncclInvalidArgument));
static_assert(is_same(ours::invalid_usage, ncclInvalidUsage));
static_assert(is_same(ours::remote_error, ncclRemoteError));
static_assert(is_same(ours::in_progress, ncclInProgress));
static_assert(is_same(ours::int8, ncclInt8));
static_assert(is_same(ours::uint8, ncclUint8));
static_assert(is_same(ours::int32, ncclInt32));
static_assert(is_same(ours::uint32, ncclUint32));
static_assert(is_same(ours::int64, ncclInt64));
static_assert(is_same(ours::uint64, ncclUint64));
static_assert(is_same(ours::float16, ncclFloat16));
static_assert(is_same(ours::float32, ncclFloat32));
static_assert(is_same(ours::float64, ncclFloat64));
static_assert(is_same(ours::bfloat16, ncclBfloat16));
static_assert(is_same(ours::sum, ncclSum));
static_assert(is_same(ours::prod, ncclProd));
static_assert(is_same(ours::max, ncclMax));
static_assert(is_same(ours::min, ncclMin));
static_assert(is_same(ours::avg, ncclAvg));
static_assert(is_same(ours::in_device_memory, ncclScalarDevice));
static_assert(is_same(ours::in_host_memory, ncclScalarHostImmediate));

static_assert(sizeof(ours::UniqueId) == sizeof(ncclUniqueId) &&
              sizeof(ours::UniqueId::internal) == NCCL_UNIQUE_ID_BYTES);
static_assert(ours::unset == NCCL_CONFIG_UNDEF_INT);
constexpr ncclConfig_t initial = NCCL_CONFIG_INITIALIZER;
static_assert(ours::Config{}.magic == initial.magic);
static_assert(sizeof(ours::Config) <= sizeof(ncclConfig_t));
static_assert(offsetof(ours::Config, size) == offsetof(ncclConfig_t, size));
static_assert(offsetof(ours::Config, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(ours::Config, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(ours::Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(ours::Config, cga_cluster_size) == offsetof(ncclConfig_t, cgaClusterSize));
static_assert(offsetof(ours::Config, min_ctas) == offsetof(ncclConfig_t, minCTAs));
static_assert(offsetof(ours::Config, max_ctas) == offsetof(ncclConfig_t, maxCTAs));
static_assert(offsetof(ours::Config, net_name) == offsetof(ncclConfig_t, netName));
static_assert(offsetof(ours::Config, split_share) == offsetof(ncclConfig_t, splitShare));
static_assert(ours::oldest_version == NCCL_VERSION(2, 18, 0) && ours::float8_since == NCCL_VERSION(2, 24, 0));

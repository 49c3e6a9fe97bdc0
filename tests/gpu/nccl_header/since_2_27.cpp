// What later versions have besides.
#include "alike.h"

static_assert(Alike<ours::CommRegister, decltype(ncclCommRegister)>::value);
static_assert(Alike<ours::CommDeregister, decltype(ncclCommDeregister)>::value);
static_assert(Alike<ours::CommInitRankScalable, decltype(ncclCommInitRankScalable)>::value);
static_assert(Alike<ours::CommShrink, decltype(ncclCommShrink)>::value);
static_assert(Alike<ours::CommWindowRegister, decltype(ncclCommWindowRegister)>::value);
static_assert(Alike<ours::CommWindowDeregister, decltype(ncclCommWindowDeregister)>::value);
static_assert(Alike<ours::MemAlloc, decltype(ncclMemAlloc)>::value);
static_assert(Alike<ours::MemFree, decltype(ncclMemFree)>::value);
static_assert(Alike<ours::AlltoAll, decltype(ncclAlltoAll)>::value);
static_assert(Alike<ours::Gather, decltype(ncclGather)>::value);
static_assert(Alike<ours::Scatter, decltype(ncclScatter)>::value);
static_assert(is_same(ours::float8_e4m3, ncclFloat8e4m3));
static_assert(is_same(ours::float8_e5m2, ncclFloat8e5m2));
static_assert(offsetof(ours::Config, traffic_class) == offsetof(ncclConfig_t, trafficClass));
static_assert(ours::cta_policy_at == offsetof(ncclConfig_t, CTAPolicy));
static_assert(ours::cta_policy_zero == NCCL_CTA_POLICY_ZERO);
static_assert(ours::symmetric_window == NCCL_WIN_COLL_SYMMETRIC);

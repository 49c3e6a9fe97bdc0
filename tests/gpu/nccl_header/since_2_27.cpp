// What later versions have besides.
#include "alike.h"

static_assert(Alike<ours::CommRegister, decltype(ncclCommRegister)>::value);
static_assert(Alike<ours::CommDeregister, decltype(ncclCommDeregister)>::value);
static_assert(is_same(ours::float8_e4m3, ncclFloat8e4m3));
static_assert(is_same(ours::float8_e5m2, ncclFloat8e5m2));
static_assert(offsetof(ours::Config, traffic_class) == offsetof(ncclConfig_t, trafficClass));

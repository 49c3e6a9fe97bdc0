// The common part of the exported functions of libnccl.
#pragma once

#include "fronts/nccl/groups.h"
#include "fronts/nccl/real.h"

#define RINGREDUCE_NCCL(name, ...) \
  extern "C" __attribute__((visibility("default"))) nccl::Result nccl##name(__VA_ARGS__)

namespace ringreduce::nccl_api {

using nccl::Comm;
using nccl::DataType;
using nccl::ReduceOp;
using nccl::Stream;

inline void check_pointer(const void* pointer, const char* what) {
  if (!pointer) throw Refusal(nccl::invalid_argument, std::string(what) + " is null");
}

}  // namespace ringreduce::nccl_api

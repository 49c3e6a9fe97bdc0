// The differences between torch's versions: Versioned<Backend>, from the folder of versions/ that the build
// has chosen, and queries that work in any version.
#pragma once

#include <cstdint>
#include <vector>

#include "extras.h"

namespace ringreduce::torch_backend {

// The global ranks that a group's options name; empty before torch 2.9.
template <typename Options>
std::vector<std::uint64_t> global_ranks(const Options& options) {
  if constexpr (requires { options.global_ranks_in_group; }) {
    return options.global_ranks_in_group;
  } else {
    return {};
  }
}

// The names of the operations on several tensors; early versions have no names for them.
template <typename OpType>
constexpr OpType coalesced_reduce_scatter() {
  if constexpr (requires { OpType::REDUCE_SCATTER_TENSOR_COALESCED; }) {
    return OpType::REDUCE_SCATTER_TENSOR_COALESCED;
  } else {
    return OpType::_REDUCE_SCATTER_BASE;
  }
}

}  // namespace ringreduce::torch_backend

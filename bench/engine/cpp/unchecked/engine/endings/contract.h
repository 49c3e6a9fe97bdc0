// csrc/engine/endings/contract.h without the check: for bench/engine/contract.py alone.
#pragma once

#include <cstdint>

#include "transport/interface/transport.h"

namespace ringreduce::contract {

inline std::uint64_t history(std::uint64_t, std::uint64_t) {
  return 0;
}

inline bool kept(std::uint64_t, std::uint64_t) {
  return true;
}

inline void show(Transport&, const Record&) {}

}  // namespace ringreduce::contract

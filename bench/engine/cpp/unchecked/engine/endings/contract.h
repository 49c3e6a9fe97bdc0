<<<<<<<< HEAD:bench/engine/cpp/unchecked/engine/contract.h
// csrc/engine/contract.h without the check: for bench/engine/contract.py alone.
========
// csrc/engine/endings/contract.h without the check: for bench/contract.py alone.
>>>>>>>> part-csrc:bench/cpp/unchecked/engine/endings/contract.h
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

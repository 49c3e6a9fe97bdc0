// Checks that all ranks make the same calls in the same order. Everything that this costs a successful call
// is in here, so that bench/engine/contract.py can measure it against a build without.
#pragma once

#include <bit>
#include <cstdint>

#include "transport/interface/transport.h"

namespace ringreduce::contract {

// Stands for all calls up to this one. Messages carry it. If no message shows a disagreement, the next one
// that is exchanged does.
inline std::uint64_t history(std::uint64_t before, std::uint64_t call) {
  return std::rotl((before ^ call) * 0x9e3779b97f4a7c15ull, 29);
}

inline bool kept(std::uint64_t sent, std::uint64_t expected) {
  return sent == expected;
}

// Lets the other ranks read this rank's calls, in case they must report them.
inline void show(Transport& transport, const Record& record) {
  transport.record(record);
}

}  // namespace ringreduce::contract

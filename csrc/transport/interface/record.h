// One entry of the record of recent collectives: what a rank called. Plain data that peers may read in shared
// memory while it is being written.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ringreduce {

struct Record {
  std::uint64_t sequence = 0;           // the call's number on its communicator, from 1
  std::uint64_t history = 0;            // stands for this call and all before it: equal on ranks that agree
  std::array<std::byte, 48> content{};  // the engine's
};

}  // namespace ringreduce

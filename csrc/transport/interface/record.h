// One line of the record of recent collectives: what a rank called. Plain data that peers may read in shared
// memory while it is being written, so nothing here is trusted beyond being printed.
#pragma once

#include <cstdint>

namespace ringreduce {

struct Record {
  std::uint64_t sequence = 0;  // the call's number on its communicator, from 1
  std::uint64_t count = 0;     // elements
  std::uint64_t history = 0;   // stands for this call and all before it: equal on ranks that agree
  std::int32_t root = -1;
  std::uint8_t collective = 0;
  std::uint8_t dtype = 0;
  std::uint8_t op = 0;
  std::uint8_t reproducible = 0;  // whether the rank's communicator is
  std::uint8_t wire = 0;
  char algorithm[23] = {};
};

}  // namespace ringreduce

// What a call was, for people: the content of a Record.
#pragma once

#include <string>

#include "engine/planning/call.h"
#include "transport/interface/record.h"

namespace ringreduce {

struct Description {
  std::uint64_t count = 0;  // elements
  std::uint64_t split = 0;  // see Call::split
  std::int32_t root = -1;   // -1: there is none
  Collective collective{};
  DType dtype{};
  Op op{};
  std::uint8_t reproducible = 0;  // whether the rank's communicator is
  Encoding wire = Encoding::none;
  char algorithm[23] = {};
};
static_assert(sizeof(Description) <= sizeof(Record::content));

void describe(Record& record, const Description& description);
// "all_reduce(float32[1024], sum)" and so on. The record may be a peer's, and hold anything.
std::string in_words(const Record& record);

}  // namespace ringreduce

// Describes a call, for the other ranks and in words.
#pragma once

#include <string>
#include <string_view>

#include "engine/planning/plan.h"
#include "transport/interface/record.h"

namespace ringreduce {

// The same on all ranks (FNV-1a).
std::uint64_t hash_of(std::string_view text);

// The properties of a call's blocks that the ranks must agree on.
struct Shape {
  std::size_t longest = 0;  // elements: of the buffer, or of the longest block
  std::size_t total = 0;
  std::uint64_t hash = 0;
};
Shape shape_of(const Call& call, int world);

// Makes the plan's record, and its contract: the part that the ranks must agree on.
void describe(const Call& call, const Shape& shape, bool reproducible, std::string_view algorithm,
              Plan& plan);
// The kind that a record's call is counted under.
struct Kind {
  Collective collective{};
  std::string algorithm;
};
Kind kind_of(const Record& record);
// For a plan that serves calls of several lengths.
void set_count(Record& record, std::uint64_t count);
// A bucket of gradients that is known by its number: the record says so. Only in words: ranks need not agree
// on it.
void name_bucket(Record& record, int number);
// For example "all_reduce(float32[1024], sum)". The record may be a peer's, so it may contain anything.
std::string in_words(const Record& record);

}  // namespace ringreduce

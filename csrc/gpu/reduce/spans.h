// The operands of a group of threads: addresses and counts, small enough for a kernel's parameter.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reduce/dtype.h"
#include "reduce/encoding.h"

namespace ringreduce::device {

inline constexpr int most_spans = 32;  // of sources, and of destinations
inline constexpr int pack_bytes = 16;  // what a thread moves at once

struct Spans {
  char* destinations[most_spans];
  const char* sources[most_spans];
  int destination_count;
  int source_count;
  std::size_t count;  // elements
  Scale scale;
};

// Spans of which some are encoded in one wire format, and the others plain.
struct CodedSpans {
  Spans spans;
  Op op;                               // in float32
  std::uint32_t encoded_sources;       // a bit for each source
  std::uint32_t encoded_destinations;  // a bit for each destination
  bool quantize;                       // plain destinations get the values after encoding and decoding
};

// Throw std::invalid_argument unless there are 1 to most_spans of each.
Spans make_spans(void* const* destinations, int destination_count, const void* const* sources,
                 int source_count, std::size_t count, double factor);

// Throw std::invalid_argument, because there is no such combination.
[[noreturn]] void refuse(DType dtype, Op op);
[[noreturn]] void refuse(Encoding wire, DType plain, Op op);

}  // namespace ringreduce::device

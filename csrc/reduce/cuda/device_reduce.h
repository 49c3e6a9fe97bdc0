// Combines spans in the memory of a CUDA device, on a stream: the same bits as reduce/reduce.h and
// reduce/encoding.h.
//
// Spans lie where the current device can reach them; `stream` is a cudaStream_t of that device. The calls
// only launch (one kernel each): they allocate nothing, wait for nothing, and can be captured into a graph.
// They throw std::invalid_argument if there is no such combination, and std::runtime_error, which says what
// CUDA has said and what was launched, if the launch fails.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reduce/dtype.h"
#include "reduce/encoding.h"

namespace ringreduce::device {

// 1 to most_spans (spans.h) destinations and sources.
struct Operands {
  void* const* destinations;
  int destination_count;
  const void* const* sources;
  int source_count;
  std::size_t count;  // elements
};

// How many thread blocks a launch has; 0: as many as keep the device busy.
struct Launch {
  void* stream = nullptr;
  int blocks = 0;
};

// As Combine in reduce/reduce.h, the sources in one pass in the order given, alignment and aliasing included.
void combine(DType dtype, Op op, const Operands& operands, double scale, const Launch& launch);

// Copies bytes to every destination.
void copy(void* const* destinations, int destination_count, const void* source, std::size_t bytes,
          const Launch& launch);

// Some spans are encoded, the others plain. For each i: the sources' values are decoded to float32, joined by
// op in the order given, and scaled for Op::avg and Op::premul_sum; the destinations get them as their form
// needs.
struct Coded {
  Encoding wire;
  DType plain;                         // of the spans that are not encoded: takes(wire, plain)
  Op op;                               // of a float
  std::uint32_t encoded_sources;       // a bit for each
  std::uint32_t encoded_destinations;  // a bit for each
  bool quantize;                       // plain destinations get what decoding the encoded ones gives
};

// The bits are those of Codec and of Combine for float32, every NaN being the one of reduce.h. A destination
// may be the very same span as a source, of the same form; otherwise spans do not overlap.
void combine_coded(const Coded& coded, const Operands& operands, double scale, const Launch& launch);

}  // namespace ringreduce::device

// Copies of bytes, by the threads that combine.
#pragma once

#include "gpu/reduce/combine.h"
#include "reduce/arithmetic/combinations.h"

namespace ringreduce::device {

// Copies the bytes of one source. Where its packs are not the destinations', in the longest words that are
// aligned in all of them.
RINGREDUCE_DEVICE void copy_bytes(const Spans& spans, std::size_t thread, std::size_t threads) {
  const Combiner<Integer<std::uint8_t>, Sum, 1> bytes(spans, spans.count);
  const std::uintptr_t apart = bytes.differing();
  const std::uintptr_t all = apart | bytes.address(spans.sources[0]) | spans.count;
  if (apart % pack_bytes == 0 || all % 4 != 0) {
    bytes.run(thread, threads);
  } else if (all % 8 != 0) {
    Combiner<Integer<std::uint32_t>, Sum, 1>(spans, spans.count / 4).run(thread, threads);
  } else {
    Combiner<Integer<std::uint64_t>, Sum, 1>(spans, spans.count / 8).run(thread, threads);
  }
}

}  // namespace ringreduce::device

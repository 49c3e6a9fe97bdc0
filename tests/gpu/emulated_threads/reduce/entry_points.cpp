// What tests/gpu/emulated.py calls: as gpu/reduce/entry_points.h, with a group in place of a
// stream.
#include "emulated.h"
#include "gpu/reduce/failures.h"

using namespace ringreduce;
using namespace ringreduce::device;

extern "C" const char* emulated_combine(int dtype, int op, int chosen, void* const* destinations,
                                        int destination_count, const void* const* sources, int source_count,
                                        std::size_t count, double scale, std::size_t threads, int backwards) {
  return failure_of([&] {
    const Spans spans = make_spans(destinations, destination_count, sources, source_count, count, scale);
    emulate_combine(static_cast<DType>(dtype), static_cast<Op>(op), chosen, spans, {threads, backwards != 0});
  });
}

extern "C" const char* emulated_copy(void* const* destinations, int destination_count, const void* source,
                                     std::size_t bytes, std::size_t threads, int backwards) {
  return failure_of([&] {
    const Spans spans = make_spans(destinations, destination_count, &source, 1, bytes, 1);
    emulate_copy(spans, {threads, backwards != 0});
  });
}

extern "C" const char* emulated_combine_coded(int wire, int plain, int op, std::uint32_t encoded_sources,
                                              std::uint32_t encoded_destinations, int quantize,
                                              void* const* destinations, int destination_count,
                                              const void* const* sources, int source_count, std::size_t count,
                                              double scale, std::size_t warps, int backwards) {
  return failure_of([&] {
    const CodedSpans coded = {
        make_spans(destinations, destination_count, sources, source_count, count, scale), static_cast<Op>(op),
        encoded_sources, encoded_destinations, quantize != 0};
    emulate_coded(static_cast<Encoding>(wire), static_cast<DType>(plain), coded, {warps, backwards != 0});
  });
}

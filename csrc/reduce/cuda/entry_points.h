// What libringreduce_cuda.so exports: plain C functions, found by name after dlopen. Each returns null, or
// what went wrong: text that lasts until the calling thread's next call. Numbers of dtypes, ops and wires are
// those of dtype.h and encoding.h.
//
// These combine spans in the memory of a CUDA device, 1 to most_spans (spans.h) destinations and sources: the
// same bits as reduce/reduce.h and reduce/encoding.h. Spans lie where the current device can reach them;
// `stream` is a cudaStream_t of that device. The calls only launch, one kernel each, of so many blocks, or
// with 0 as many as keep the device busy: they allocate nothing, wait for nothing, and can be captured into a
// graph.
#pragma once

#include <cstddef>
#include <cstdint>

#define RINGREDUCE_EXPORT extern "C" __attribute__((visibility("default")))

// Loads the kernels of combine and copy for the current device. CUDA does so at the first launch of each
// otherwise, and may wait for what the device runs.
RINGREDUCE_EXPORT const char* ringreduce_cuda_load();
// As Combine in reduce/reduce.h, the sources in one pass in the order given, alignment and aliasing included.
RINGREDUCE_EXPORT const char* ringreduce_cuda_combine(int dtype, int op, void* const* destinations,
                                                      int destination_count, const void* const* sources,
                                                      int source_count, std::size_t count, double scale,
                                                      void* stream, int blocks);
// Copies bytes to every destination.
RINGREDUCE_EXPORT const char* ringreduce_cuda_copy(void* const* destinations, int destination_count,
                                                   const void* source, std::size_t bytes, void* stream,
                                                   int blocks);
// Some spans are encoded, as the bits say, the others are of `plain`: takes(wire, plain). For each i: the
// sources' values are decoded to float32, joined by op in the order given, and scaled for Op::avg and
// Op::premul_sum; the destinations get them as their form needs, `quantize`: plain ones what decoding the
// encoded ones gives. The bits are those of Codec and of Combine for float32, every NaN being the one of
// reduce.h. A destination may be the very same span as a source, of the same form; otherwise spans do not
// overlap.
RINGREDUCE_EXPORT const char* ringreduce_cuda_combine_coded(
    int wire, int plain, int op, std::uint32_t encoded_sources, std::uint32_t encoded_destinations,
    int quantize, void* const* destinations, int destination_count, const void* const* sources,
    int source_count, std::size_t count, double scale, void* stream, int blocks);

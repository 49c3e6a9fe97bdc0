// The functions of libringreduce_cuda.so: plain C, found by name after dlopen. Each returns null, or an error
// text that is valid until the calling thread's next call. Numbers of dtypes, ops and wires are those of
// dtype.h and encoding.h.
//
// They combine spans in the memory of a CUDA device, with 1 to most_spans (spans.h) destinations and sources,
// and give the same bits as reduce/reduce.h and reduce/encoding.h. The current device must be able to reach
// the spans; `stream` is a cudaStream_t of that device. The calls only launch, one kernel each, with the
// given number of blocks, or 0 for as many as keep the device busy. They allocate nothing, wait for nothing,
// and can be captured into a graph.
#pragma once

#include <cstddef>
#include <cstdint>

#define RINGREDUCE_EXPORT extern "C" __attribute__((visibility("default")))

// Loads the kernels of combine and copy for the current device. Otherwise CUDA loads each at its first
// launch, and may wait for running work.
RINGREDUCE_EXPORT const char* ringreduce_cuda_load();
// Like Combine in reduce/reduce.h: the sources in one pass in the given order, with the same rules for
// alignment and aliasing.
RINGREDUCE_EXPORT const char* ringreduce_cuda_combine(int dtype, int op, void* const* destinations,
                                                      int destination_count, const void* const* sources,
                                                      int source_count, std::size_t count, double scale,
                                                      void* stream, int blocks);
// Copies bytes to every destination.
RINGREDUCE_EXPORT const char* ringreduce_cuda_copy(void* const* destinations, int destination_count,
                                                   const void* source, std::size_t bytes, void* stream,
                                                   int blocks);
// Some spans are encoded, as the bits say, and the others are of type `plain`: takes(wire, plain). For each
// i, the sources' values are decoded to float32, joined by op in the given order, and scaled for Op::avg. The
// destinations get the result in their form; with `quantize`, plain ones get what decoding the encoded ones
// gives. The bits are those of Codec and of Combine for float32, and every NaN is the one of reduce.h. A
// destination may be the very same span as a source, in the same form; otherwise spans do not overlap.
RINGREDUCE_EXPORT const char* ringreduce_cuda_combine_coded(
    int wire, int plain, int op, std::uint32_t encoded_sources, std::uint32_t encoded_destinations,
    int quantize, void* const* destinations, int destination_count, const void* const* sources,
    int source_count, std::size_t count, double scale, void* stream, int blocks);

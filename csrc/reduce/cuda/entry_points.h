// What libringreduce_cuda.so exports: plain C functions, found by name after dlopen. Each returns null, or
// what went wrong: text that lasts until the calling thread's next call. Numbers of dtypes, ops and wires are
// those of dtype.h and encoding.h.
#pragma once

#include <cstddef>
#include <cstdint>

#define RINGREDUCE_EXPORT extern "C" __attribute__((visibility("default")))

RINGREDUCE_EXPORT const char* ringreduce_cuda_combine(int dtype, int op, void* const* destinations,
                                                      int destination_count, const void* const* sources,
                                                      int source_count, std::size_t count, double scale,
                                                      void* stream, int blocks);
RINGREDUCE_EXPORT const char* ringreduce_cuda_copy(void* const* destinations, int destination_count,
                                                   const void* source, std::size_t bytes, void* stream,
                                                   int blocks);
RINGREDUCE_EXPORT const char* ringreduce_cuda_combine_coded(
    int wire, int plain, int op, std::uint32_t encoded_sources, std::uint32_t encoded_destinations,
    int quantize, void* const* destinations, int destination_count, const void* const* sources,
    int source_count, std::size_t count, double scale, void* stream, int blocks);

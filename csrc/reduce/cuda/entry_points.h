// What libringreduce_cuda.so exports: plain C functions, found by name after dlopen. Each returns null, or
// what went wrong: text that lasts until the calling thread's next call. Numbers of dtypes, ops and wires are
// those of dtype.h and wire.h.
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
    int settle, void* const* destinations, int destination_count, const void* const* sources,
    int source_count, std::size_t count, double scale, void* stream, int blocks);

// For tests and benchmarks, which then need nothing but the driver: memory, streams, events and graphs of the
// current device. Results are written to the first argument.
RINGREDUCE_EXPORT const char* ringreduce_cuda_count_devices(int* count);
RINGREDUCE_EXPORT const char* ringreduce_cuda_name_device(char* name, std::size_t room);
RINGREDUCE_EXPORT const char* ringreduce_cuda_allocate(void** memory, std::size_t bytes);
RINGREDUCE_EXPORT const char* ringreduce_cuda_free(void* memory);
RINGREDUCE_EXPORT const char* ringreduce_cuda_move(void* to, const void* from, std::size_t bytes,
                                                   void* stream);
RINGREDUCE_EXPORT const char* ringreduce_cuda_fill(void* memory, int byte, std::size_t bytes, void* stream);
RINGREDUCE_EXPORT const char* ringreduce_cuda_create_stream(void** stream);
RINGREDUCE_EXPORT const char* ringreduce_cuda_destroy_stream(void* stream);
RINGREDUCE_EXPORT const char* ringreduce_cuda_synchronize(void* stream);
RINGREDUCE_EXPORT const char* ringreduce_cuda_create_event(void** event);
RINGREDUCE_EXPORT const char* ringreduce_cuda_destroy_event(void* event);
RINGREDUCE_EXPORT const char* ringreduce_cuda_record(void* event, void* stream);
RINGREDUCE_EXPORT const char* ringreduce_cuda_elapsed(float* milliseconds, void* begin, void* end);
RINGREDUCE_EXPORT const char* ringreduce_cuda_begin_capture(void* stream);
RINGREDUCE_EXPORT const char* ringreduce_cuda_end_capture(void** graph, void* stream);
RINGREDUCE_EXPORT const char* ringreduce_cuda_launch_graph(void* graph, void* stream);
RINGREDUCE_EXPORT const char* ringreduce_cuda_destroy_graph(void* graph);

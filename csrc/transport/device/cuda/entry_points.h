// What libringreduce_cuda.so exports of devices, memory and streams. Each function returns null, or what went
// wrong: text that lasts until the calling thread's next call. Results are written to the first argument. The
// current device is the calling thread's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reduce/cuda/entry_points.h"

namespace ringreduce::device {

inline constexpr std::size_t handle_bytes = 88;  // of memory that other processes are to reach
inline constexpr std::size_t identity_bytes = 16;

// Device memory that was allocated as one. No other of this process ever has the same number.
struct Allocation {
  std::uint64_t at, bytes, number;
  bool operator==(const Allocation&) const = default;
};

}  // namespace ringreduce::device

// --- devices -----------------------------------------------------------------------------------------------

RINGREDUCE_EXPORT const char* ringreduce_cuda_count_devices(int* count);
RINGREDUCE_EXPORT const char* ringreduce_cuda_name_device(char* name, std::size_t room);
RINGREDUCE_EXPORT const char* ringreduce_cuda_current_device(int* device);
RINGREDUCE_EXPORT const char* ringreduce_cuda_choose_device(int device);
// The same for a while. `before` becomes the context that the calling thread had, or null, for leave_device,
// which gives none to any other device: a context takes hundreds of MB there.
RINGREDUCE_EXPORT const char* ringreduce_cuda_enter_device(void** before, int device);
RINGREDUCE_EXPORT const char* ringreduce_cuda_leave_device(void* before);
// The same for two numbers, of whatever processes, if they are the same device.
RINGREDUCE_EXPORT const char* ringreduce_cuda_identify_device(char* identity, int device);
// -1: the memory is no device's. Needs no current device.
RINGREDUCE_EXPORT const char* ringreduce_cuda_device_of(int* device, const void* memory);
// The current device's kernels may read and write the other's memory from now on: what cudaMalloc gives.
RINGREDUCE_EXPORT const char* ringreduce_cuda_reach(int other);
// These devices' kernels may read and write the memory, whatever it was made by: mapped by the driver, as
// expandable segments are, or of a stream-ordered pool. Theirs must be able to reach its device.
RINGREDUCE_EXPORT const char* ringreduce_cuda_admit(const int* devices, int count, const void* memory,
                                                    std::size_t bytes);

// --- memory ------------------------------------------------------------------------------------------------

RINGREDUCE_EXPORT const char* ringreduce_cuda_allocate(void** memory, std::size_t bytes);
RINGREDUCE_EXPORT const char* ringreduce_cuda_free(void* memory);
// Of the host, at the same address for kernels; zeros.
RINGREDUCE_EXPORT const char* ringreduce_cuda_allocate_on_host(void** memory, std::size_t bytes);
RINGREDUCE_EXPORT const char* ringreduce_cuda_free_on_host(void* memory);
// The allocations that device memory lies in, one behind the other where they are mapped so. `count`: for how
// many there is room, and then how many they are.
RINGREDUCE_EXPORT const char* ringreduce_cuda_allocations(ringreduce::device::Allocation* found, int* count,
                                                          const void* memory, std::size_t bytes);
// An allocation, whoever has made it, for other processes of this host: as handle_bytes that say where it is,
// until unshare() at most.
RINGREDUCE_EXPORT const char* ringreduce_cuda_share(char* handle, void* memory);
RINGREDUCE_EXPORT const char* ringreduce_cuda_unshare(const char* handle);
// So many of them, one behind the other.
RINGREDUCE_EXPORT const char* ringreduce_cuda_map(void** memory, const char* handles, int count);
RINGREDUCE_EXPORT const char* ringreduce_cuda_unmap(void* memory);
RINGREDUCE_EXPORT const char* ringreduce_cuda_move(void* to, const void* from, std::size_t bytes,
                                                   void* stream);
RINGREDUCE_EXPORT const char* ringreduce_cuda_fill(void* memory, int byte, std::size_t bytes, void* stream);

// --- streams, events, graphs -------------------------------------------------------------------------------

RINGREDUCE_EXPORT const char* ringreduce_cuda_create_stream(void** stream);
RINGREDUCE_EXPORT const char* ringreduce_cuda_destroy_stream(void* stream);
RINGREDUCE_EXPORT const char* ringreduce_cuda_synchronize(void* stream);
// Whether what is launched on it goes into a graph.
RINGREDUCE_EXPORT const char* ringreduce_cuda_is_captured(int* is_captured, void* stream);
// What it goes into holds the object: when neither that graph nor one made of it is there or runs any more,
// drop(object) comes, in any thread, and makes no calls of CUDA.
RINGREDUCE_EXPORT const char* ringreduce_cuda_hold_in_graph(void* stream, void* object, void (*drop)(void*));
// How strict captures are with this thread, as cudaStreamCaptureMode has it; 2 allows what they otherwise
// forbid, allocating above all. `mode` becomes what it was.
RINGREDUCE_EXPORT const char* ringreduce_cuda_exchange_capture_mode(int* mode);
// `timed`: elapsed() takes it; recording one that is not costs less.
RINGREDUCE_EXPORT const char* ringreduce_cuda_create_event(void** event, int timed);
RINGREDUCE_EXPORT const char* ringreduce_cuda_destroy_event(void* event);
RINGREDUCE_EXPORT const char* ringreduce_cuda_record(void* event, void* stream);
// What is launched on the stream later waits for what was recorded.
RINGREDUCE_EXPORT const char* ringreduce_cuda_wait(void* event, void* stream);
// Whether what was recorded is over.
RINGREDUCE_EXPORT const char* ringreduce_cuda_is_over(int* over, void* event);
RINGREDUCE_EXPORT const char* ringreduce_cuda_elapsed(float* milliseconds, void* begin, void* end);
// As cudaStreamCaptureMode has it: what else is forbidden meanwhile, 0 to all threads, 1 to this one, 2 to
// none.
RINGREDUCE_EXPORT const char* ringreduce_cuda_begin_capture(void* stream, int mode);
RINGREDUCE_EXPORT const char* ringreduce_cuda_end_capture(void** graph, void* stream);
RINGREDUCE_EXPORT const char* ringreduce_cuda_launch_graph(void* graph, void* stream);
RINGREDUCE_EXPORT const char* ringreduce_cuda_destroy_graph(void* graph);

// The functions of libringreduce_cuda.so for devices, memory and streams. Each returns null, or an error text
// that is valid until the calling thread's next call. Results are written to the first argument. The current
// device is the calling thread's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/reduce/entry_points.h"

namespace ringreduce::device {

inline constexpr std::size_t handle_bytes = 88;  // of memory that other processes can reach
inline constexpr std::size_t identity_bytes = 16;

// Device memory that was allocated as one. Its number is unique in this process.
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
// The same for a while. `before` becomes the thread's previous context, or null, for leave_device. Other
// devices get no context, which would take hundreds of MB there.
RINGREDUCE_EXPORT const char* ringreduce_cuda_enter_device(void** before, int device);
RINGREDUCE_EXPORT const char* ringreduce_cuda_leave_device(void* before);
// Equal for two numbers, in any processes, if they are the same device.
RINGREDUCE_EXPORT const char* ringreduce_cuda_identify_device(char* identity, int device);
// -1: the memory is not a device's. Needs no current device.
RINGREDUCE_EXPORT const char* ringreduce_cuda_device_of(int* device, const void* memory);
// Lets the current device's kernels read and write the other's memory from cudaMalloc.
RINGREDUCE_EXPORT const char* ringreduce_cuda_reach(int other);
// Lets these devices' kernels read and write the memory, however it was made: mapped by the driver, like
// expandable segments, or from a stream-ordered pool. They must be able to reach its device.
RINGREDUCE_EXPORT const char* ringreduce_cuda_admit(const int* devices, int count, const void* memory,
                                                    std::size_t bytes);

// --- memory ------------------------------------------------------------------------------------------------

RINGREDUCE_EXPORT const char* ringreduce_cuda_allocate(void** memory, std::size_t bytes);
RINGREDUCE_EXPORT const char* ringreduce_cuda_free(void* memory);
// On the host, at the same address for kernels; zeroed.
RINGREDUCE_EXPORT const char* ringreduce_cuda_allocate_on_host(void** memory, std::size_t bytes);
RINGREDUCE_EXPORT const char* ringreduce_cuda_free_on_host(void* memory);
// Lets all devices' streams use memory of the host that was allocated elsewhere. `at`: its address there.
RINGREDUCE_EXPORT const char* ringreduce_cuda_pin_on_host(void** at, void* memory, std::size_t bytes);
RINGREDUCE_EXPORT const char* ringreduce_cuda_unpin_on_host(void* memory);
// The allocations that device memory lies in, one after the other as they are mapped. `count`: in, the
// capacity; out, the number found.
RINGREDUCE_EXPORT const char* ringreduce_cuda_allocations(ringreduce::device::Allocation* found, int* count,
                                                          const void* memory, std::size_t bytes);
// Makes an allocation, whoever made it, available to other processes of this host: handle_bytes that identify
// it, valid until unshare() at most.
RINGREDUCE_EXPORT const char* ringreduce_cuda_share(char* handle, void* memory);
RINGREDUCE_EXPORT const char* ringreduce_cuda_unshare(const char* handle);
// `count` of them, one after the other.
RINGREDUCE_EXPORT const char* ringreduce_cuda_map(void** memory, const char* handles, int count);
RINGREDUCE_EXPORT const char* ringreduce_cuda_unmap(void* memory);
RINGREDUCE_EXPORT const char* ringreduce_cuda_move(void* to, const void* from, std::size_t bytes,
                                                   void* stream);
// Several, in any order. The driver is asked to do them beside kernels if it can be (CUDA 13), and the stream
// is not the legacy default. Not in graphs.
RINGREDUCE_EXPORT const char* ringreduce_cuda_move_all(void* const* to, const void* const* from,
                                                       const std::size_t* bytes, int count, void* stream);
RINGREDUCE_EXPORT const char* ringreduce_cuda_fill(void* memory, int byte, std::size_t bytes, void* stream);

// --- streams, events, graphs -------------------------------------------------------------------------------

RINGREDUCE_EXPORT const char* ringreduce_cuda_create_stream(void** stream);
// 0 is the usual priority. Work on streams with lower numbers runs first. There are as many as the device
// has; others count as the next one.
RINGREDUCE_EXPORT const char* ringreduce_cuda_create_stream_with_priority(void** stream, int priority);
RINGREDUCE_EXPORT const char* ringreduce_cuda_destroy_stream(void* stream);
RINGREDUCE_EXPORT const char* ringreduce_cuda_synchronize(void* stream);
// Whether launches on it go into a graph.
RINGREDUCE_EXPORT const char* ringreduce_cuda_is_captured(int* is_captured, void* stream);
// Ties the object to the graph that is being captured. When neither the graph nor one made from it exists or
// runs any more, drop(object) is called, in any thread, and must make no CUDA calls.
RINGREDUCE_EXPORT const char* ringreduce_cuda_hold_in_graph(void* stream, void* object, void (*drop)(void*));
// How strict captures are with this thread, as in cudaStreamCaptureMode; 2 allows what they otherwise forbid,
// especially allocating. `mode` becomes the previous one.
RINGREDUCE_EXPORT const char* ringreduce_cuda_exchange_capture_mode(int* mode);
// `timed`: elapsed() accepts it; recording an untimed event costs less.
RINGREDUCE_EXPORT const char* ringreduce_cuda_create_event(void** event, int timed);
RINGREDUCE_EXPORT const char* ringreduce_cuda_destroy_event(void* event);
RINGREDUCE_EXPORT const char* ringreduce_cuda_record(void* event, void* stream);
// Later launches on the stream wait for the recorded work.
RINGREDUCE_EXPORT const char* ringreduce_cuda_wait(void* event, void* stream);
// Whether the recorded work has finished.
RINGREDUCE_EXPORT const char* ringreduce_cuda_is_over(int* over, void* event);
// The stream and the host tell each other how far they are, through a word in memory on the host. post(): the
// word, which may also be the device's, gets the value when earlier launches are over, and the host sees what
// they have written. hold(): later launches wait until the word is not less. Neither goes into graphs.
RINGREDUCE_EXPORT const char* ringreduce_cuda_post(std::uint64_t* word, std::uint64_t value, void* stream);
RINGREDUCE_EXPORT const char* ringreduce_cuda_hold(const std::uint64_t* word, std::uint64_t value,
                                                   void* stream);
RINGREDUCE_EXPORT const char* ringreduce_cuda_elapsed(float* milliseconds, void* begin, void* end);
// As in cudaStreamCaptureMode: to whom unsafe calls are forbidden, 0 to all threads, 1 to this one, 2 to
// none.
RINGREDUCE_EXPORT const char* ringreduce_cuda_begin_capture(void* stream, int mode);
RINGREDUCE_EXPORT const char* ringreduce_cuda_end_capture(void** graph, void* stream);
RINGREDUCE_EXPORT const char* ringreduce_cuda_launch_graph(void* graph, void* stream);
RINGREDUCE_EXPORT const char* ringreduce_cuda_destroy_graph(void* graph);

// Devices, streams and events of the emulated GPU as torch's, for the device type CUDA.
#pragma once

#include <c10/core/Stream.h>

#include <string>
#include <utility>
#include <vector>

namespace ringreduce::emulated_torch {

// Throws what an entry point of the emulated library has said, if anything.
void check(const char* failure);

// The current one of this thread.
c10::Stream current_stream(c10::Device device);
// One that nothing else has.
c10::Stream new_stream(c10::Device device, int priority = 0);
void* handle_of(const c10::Stream& stream);

// What was recorded for the caching allocator since the last time: addresses, and the streams' numbers.
std::vector<std::pair<std::uintptr_t, c10::StreamId>> take_records();

}  // namespace ringreduce::emulated_torch

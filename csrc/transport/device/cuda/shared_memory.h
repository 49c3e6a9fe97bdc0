// Device memory that other processes of the host are to reach: by CUDA's IPC handles where the device has
// them, else by a fabric's handles, else by files. The latter two are of the driver's virtual memory.
#pragma once

#include <cstddef>

namespace ringreduce::device {

// Of the current device. RINGREDUCE_CUDA_HANDLES (ipc, fabric, file) chooses another kind than the first that
// the device has. They throw std::runtime_error.
void* allocate(std::size_t bytes);
void free(void* memory);

// For another process, which maps it: handle_bytes of plain data.
void share(char* handle, void* memory);
void* map(const char* handle);
void unmap(void* memory);

}  // namespace ringreduce::device

// Memory of the driver's that is made and mapped in two steps. What is made in one process can be mapped in
// others.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <vector>

namespace ringreduce::device {

// By what other processes know it: CU_MEM_HANDLE_TYPE_FABRIC or CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.
using HandleType = CUmemAllocationHandleType;

struct VirtualMemory {
  CUmemGenericAllocationHandle allocation;
  void* at;
  std::size_t bytes;
  HandleType type;
};

// Whether the current device has handles of that type.
bool has_handles(HandleType type);
// Of the current device, reached by all devices that can.
VirtualMemory make(std::size_t bytes, HandleType type);
// What another process has made, reached by the current device.
VirtualMemory import_from(void* handle, std::size_t bytes, HandleType type);
void give_back(const VirtualMemory& memory);

// These devices may read and write the memory, whatever it was made by.
void admit(const std::vector<int>& devices, const void* memory, std::size_t bytes);

}  // namespace ringreduce::device

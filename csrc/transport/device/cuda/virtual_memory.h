// Memory of the driver's that is made and mapped in two steps. What is made in one process can be mapped in
// others.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <functional>
#include <vector>

namespace ringreduce::device {

// By what other processes know it: CU_MEM_HANDLE_TYPE_FABRIC or CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.
using HandleType = CUmemAllocationHandleType;

// Where allocations are mapped, one behind the other; they last as long as some mapping of theirs.
struct VirtualMemory {
  CUdeviceptr at = 0;
  std::size_t bytes = 0;
  std::vector<std::size_t> parts;  // bytes of each
};

// Whether the current device has handles of that type.
bool has_handles(HandleType type);
// Of the current device, reached by all devices that can.
VirtualMemory make(std::size_t bytes, HandleType type);
// Parts of so many bytes that other processes have made, reached by the current device: `import` gives each
// to be released.
VirtualMemory import_parts(const std::vector<std::size_t>& bytes,
                           const std::function<CUmemGenericAllocationHandle(std::size_t part)>& import);
void give_back(const VirtualMemory& memory);

// These devices may read and write the memory, whatever it was made by.
void admit(const std::vector<int>& devices, const void* memory, std::size_t bytes);

}  // namespace ringreduce::device

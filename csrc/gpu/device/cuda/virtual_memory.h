// The driver's virtual memory, which is made and mapped in two steps. Memory made in one process can be
// mapped in others.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <functional>
#include <vector>

namespace ringreduce::device {

// How other processes identify it: CU_MEM_HANDLE_TYPE_FABRIC or CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.
using HandleType = CUmemAllocationHandleType;

// Where allocations are mapped, one after the other; they live as long as any mapping of them.
struct VirtualMemory {
  CUdeviceptr at = 0;
  std::size_t bytes = 0;
  std::vector<std::size_t> parts;  // bytes of each
};

// Whether the current device supports handles of this type.
bool has_handles(HandleType type);
// On the current device, accessible to all devices that can reach it.
VirtualMemory make(std::size_t bytes, HandleType type);
// Maps parts of these sizes that other processes have made, accessible to the current device. `import`
// returns each part, to be released.
VirtualMemory import_parts(const std::vector<std::size_t>& bytes,
                           const std::function<CUmemGenericAllocationHandle(std::size_t part)>& import);
void give_back(const VirtualMemory& memory);

// Lets these devices read and write the memory, however it was made.
void admit(const std::vector<int>& devices, const void* memory, std::size_t bytes);

}  // namespace ringreduce::device

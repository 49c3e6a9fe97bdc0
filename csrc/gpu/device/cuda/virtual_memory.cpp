#include "gpu/device/cuda/virtual_memory.h"

#include <cuda_runtime_api.h>

#include <numeric>
#include <vector>

#include "gpu/device/cuda/driver.h"
#include "gpu/reduce/errors.h"

namespace ringreduce::device {
namespace {

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "device");
  return device;
}

CUmemAccessDesc access_by(int device) {
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return access;
}

// This device, and all devices that can reach its memory.
std::vector<CUmemAccessDesc> all_that_reach(int device) {
  int count = 0;
  check(cudaGetDeviceCount(&count), "count of devices");
  std::vector<CUmemAccessDesc> found;
  for (int other = 0; other < count; ++other) {
    int can = other == device ? 1 : 0;
    if (!can) check(cudaDeviceCanAccessPeer(&can, other, device), "peer access");
    if (can) found.push_back(access_by(other));
  }
  return found;
}

using Parts = std::function<CUmemGenericAllocationHandle(std::size_t)>;

// An allocation lives as long as any mapping of it.
VirtualMemory mapped(const std::vector<std::size_t>& parts, const Parts& allocation,
                     const std::vector<CUmemAccessDesc>& access) {
  const Driver& driver = Driver::get();
  VirtualMemory memory;
  memory.bytes = std::accumulate(parts.begin(), parts.end(), std::size_t{0});
  driver.check(driver.reserve(&memory.at, memory.bytes, 0, 0, 0), "mapping device memory");
  try {
    CUdeviceptr end = memory.at;
    for (const std::size_t bytes : parts) {
      const CUmemGenericAllocationHandle part = allocation(memory.parts.size());
      const CUresult result = driver.map(end, bytes, 0, part, 0);
      driver.release(part);
      driver.check(result, "mapping device memory");
      memory.parts.push_back(bytes);
      end += bytes;
    }
    driver.check(driver.set_access(memory.at, memory.bytes, access.data(), access.size()),
                 "mapping device memory");
  } catch (...) {
    give_back(memory);
    throw;
  }
  return memory;
}

void admit_to_pool(const std::vector<int>& devices, CUmemoryPool pool) {
  const Driver& driver = Driver::get();
  for (const int device : devices) {
    CUmemAccessDesc access = access_by(device);
    CUmemAccess_flags has = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    driver.check(driver.pool_access(&has, pool, &access.location), "access to a pool of memory");
    if (has != access.flags)
      driver.check(driver.set_pool_access(pool, &access, 1), "access to a pool of memory");
  }
}

// One piece of physical memory, which is mapped as a whole.
void admit_to_piece(const std::vector<int>& devices, CUdeviceptr piece, std::size_t bytes) {
  const Driver& driver = Driver::get();
  for (const int device : devices) {
    const CUmemAccessDesc access = access_by(device);
    unsigned long long has = 0;
    // Not mapped by the driver: made by CUDA itself on a system without IPC, or managed. Peer access is
    // enough.
    if (driver.access(&has, &access.location, piece) != CUDA_SUCCESS) return;
    if (has != access.flags) driver.check(driver.set_access(piece, bytes, &access, 1), "access to memory");
  }
}

}  // namespace

void admit(const std::vector<int>& devices, const void* memory, std::size_t bytes) {
  const Driver& driver = Driver::get();
  const auto begin = reinterpret_cast<CUdeviceptr>(memory);
  std::uint64_t is_plain = 0;  // wide enough for a boolean of any driver
  CUmemoryPool pool = nullptr;
  CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                 CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE};
  void* answers[] = {&is_plain, &pool};
  driver.check(driver.attributes_of(2, asked, answers, begin), "looking up memory");
  if (is_plain) return;  // peer access covers memory from cudaMalloc, and nothing else
  if (pool) return admit_to_pool(devices, pool);
  for (CUdeviceptr at = begin; at < begin + bytes;) {
    CUdeviceptr piece = 0;
    std::size_t length = 0;
    driver.check(driver.address_range(&piece, &length, at), "looking up memory");
    admit_to_piece(devices, piece, length);
    at = piece + length;
  }
}

bool has_handles(HandleType type) {
  const Driver& driver = Driver::get();
  CUdevice device = 0;
  driver.check(driver.device(&device, current_device()), "device");
  const auto attribute = type == CU_MEM_HANDLE_TYPE_FABRIC
                             ? CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED
                             : CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
  int has = 0;
  // A driver that does not know the attribute does not have the feature.
  return driver.attribute(&has, attribute, device) == CUDA_SUCCESS && has != 0;
}

VirtualMemory make(std::size_t bytes, HandleType type) {
  const Driver& driver = Driver::get();
  const int device = current_device();
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = type;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  std::size_t unit = 0;
  driver.check(driver.granularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM), "device memory");
  const std::size_t whole = (bytes + unit - 1) / unit * unit;
  const auto create = [&](std::size_t) {
    CUmemGenericAllocationHandle allocation = 0;
    driver.check(driver.create(&allocation, whole, &properties, 0), "device memory");
    return allocation;
  };
  return mapped({whole}, create, all_that_reach(device));
}

VirtualMemory import_parts(const std::vector<std::size_t>& bytes, const Parts& import) {
  return mapped(bytes, import, {access_by(current_device())});
}

void give_back(const VirtualMemory& memory) {
  const Driver& driver = Driver::get();
  CUdeviceptr at = memory.at;
  for (const std::size_t bytes : memory.parts) {
    driver.check(driver.unmap(at, bytes), "device memory");
    at += bytes;
  }
  driver.check(driver.unreserve(memory.at, memory.bytes), "device memory");
}

}  // namespace ringreduce::device

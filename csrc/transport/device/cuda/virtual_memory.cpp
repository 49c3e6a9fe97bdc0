#include "transport/device/cuda/virtual_memory.h"

#include <cuda_runtime_api.h>

#include <vector>

#include "reduce/cuda/errors.h"
#include "transport/device/cuda/driver.h"

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

// This device, and all that can reach its memory.
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

// Takes the allocation over: if it cannot be mapped, it is released.
VirtualMemory mapped(CUmemGenericAllocationHandle allocation, std::size_t bytes, HandleType type,
                     const std::vector<CUmemAccessDesc>& access) {
  const Driver& driver = Driver::get();
  CUdeviceptr at = 0;
  CUresult result = driver.reserve(&at, bytes, 0, 0, 0);
  if (result == CUDA_SUCCESS) {
    result = driver.map(at, bytes, 0, allocation, 0);
    if (result == CUDA_SUCCESS) {
      result = driver.set_access(at, bytes, access.data(), access.size());
      if (result != CUDA_SUCCESS) driver.unmap(at, bytes);
    }
    if (result != CUDA_SUCCESS) driver.unreserve(at, bytes);
  }
  if (result != CUDA_SUCCESS) driver.release(allocation);
  driver.check(result, "mapping device memory");
  return {allocation, reinterpret_cast<void*>(at), bytes, type};
}

}  // namespace

bool has_handles(HandleType type) {
  const Driver& driver = Driver::get();
  CUdevice device = 0;
  driver.check(driver.device(&device, current_device()), "device");
  const auto attribute = type == CU_MEM_HANDLE_TYPE_FABRIC
                             ? CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED
                             : CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
  int has = 0;
  // A driver that is older than the attribute does not have what it tells of.
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
  CUmemGenericAllocationHandle allocation = 0;
  driver.check(driver.create(&allocation, whole, &properties, 0), "device memory");
  return mapped(allocation, whole, type, all_that_reach(device));
}

VirtualMemory import_from(void* handle, std::size_t bytes, HandleType type) {
  const Driver& driver = Driver::get();
  CUmemGenericAllocationHandle allocation = 0;
  driver.check(driver.import_handle(&allocation, handle, type), "mapping shared memory");
  return mapped(allocation, bytes, type, {access_by(current_device())});
}

void give_back(const VirtualMemory& memory) {
  const Driver& driver = Driver::get();
  const auto at = reinterpret_cast<CUdeviceptr>(memory.at);
  driver.check(driver.unmap(at, memory.bytes), "device memory");
  driver.check(driver.unreserve(at, memory.bytes), "device memory");
  driver.check(driver.release(memory.allocation), "device memory");
}

}  // namespace ringreduce::device

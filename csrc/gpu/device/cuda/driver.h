// The parts of CUDA's driver that the runtime lacks: functions of libcuda.so.1, found at run time, so that
// this library loads even if there is no driver.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <string>

namespace ringreduce::device {

// X(name here, name there)
#define RINGREDUCE_DRIVER_FUNCTIONS(X)                  \
  X(error_string, cuGetErrorString)                     \
  X(get_context, cuCtxGetCurrent)                       \
  X(set_context, cuCtxSetCurrent)                       \
  X(attributes_of, cuPointerGetAttributes)              \
  X(device, cuDeviceGet)                                \
  X(attribute, cuDeviceGetAttribute)                    \
  X(granularity, cuMemGetAllocationGranularity)         \
  X(create, cuMemCreate)                                \
  X(release, cuMemRelease)                              \
  X(reserve, cuMemAddressReserve)                       \
  X(unreserve, cuMemAddressFree)                        \
  X(map, cuMemMap)                                      \
  X(unmap, cuMemUnmap)                                  \
  X(address_range, cuMemGetAddressRange_v2)             \
  X(retain, cuMemRetainAllocationHandle)                \
  X(properties, cuMemGetAllocationPropertiesFromHandle) \
  X(access, cuMemGetAccess)                             \
  X(set_access, cuMemSetAccess)                         \
  X(pool_access, cuMemPoolGetAccess)                    \
  X(set_pool_access, cuMemPoolSetAccess)                \
  X(export_handle, cuMemExportToShareableHandle)        \
  X(import_handle, cuMemImportFromShareableHandle)      \
  X(write_value, cuStreamWriteValue64_v2)               \
  X(wait_value, cuStreamWaitValue64_v2)

struct Driver {
  // Throws std::runtime_error if there is no driver, or if it lacks the functions.
  static const Driver& get();

#define RINGREDUCE_MEMBER(name, function) decltype(&function) name;
  RINGREDUCE_DRIVER_FUNCTIONS(RINGREDUCE_MEMBER)
#undef RINGREDUCE_MEMBER

  // Copies that should leave the multiprocessors to kernels, as far as the driver follows: from CUDA 13 on.
  bool can_copy_beside() const { return copy_batch_; }
  void copy_beside(void* const* to, const void* const* from, const std::size_t* bytes, std::size_t count,
                   CUstream stream) const;

  // Throws std::runtime_error, in which `what` names the operation.
  void check(CUresult result, const std::string& what) const;

 private:
  Driver();

  // CUmemcpyAttributes and cuMemcpyBatchAsync_v2, which older headers lack.
  struct HowToCopy {
    int order, hints[4];
    unsigned flags;
  };
  using CopyBatch = CUresult(void* const* to, const void* const* from, const std::size_t* bytes,
                             std::size_t count, const HowToCopy* how, const std::size_t* begins,
                             std::size_t ways, CUstream stream);
  CopyBatch* copy_batch_;
};

}  // namespace ringreduce::device

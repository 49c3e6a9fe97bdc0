// What only CUDA's driver has: functions of libcuda.so.1, found at run time, so that this library can be
// loaded where there is no driver.
#pragma once

#include <cuda.h>

#include <string>

namespace ringreduce::device {

struct Driver {
  // Throws std::runtime_error where there is no driver, or one that lacks them.
  static const Driver& get();

  decltype(&cuGetErrorString) error_string;
  decltype(&cuDeviceGet) device;
  decltype(&cuDeviceGetAttribute) attribute;
  decltype(&cuDevicePrimaryCtxGetState) context_state;
  decltype(&cuMemGetAllocationGranularity) granularity;
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) release;
  decltype(&cuMemAddressReserve) reserve;
  decltype(&cuMemAddressFree) unreserve;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemSetAccess) set_access;
  decltype(&cuMemExportToShareableHandle) export_handle;
  decltype(&cuMemImportFromShareableHandle) import_handle;

  // Throws std::runtime_error, in which `what` was being done.
  void check(CUresult result, const std::string& what) const;

 private:
  Driver();
};

}  // namespace ringreduce::device

#include "transport/device/cuda/driver.h"

#include <dlfcn.h>

#include <stdexcept>

namespace ringreduce::device {
namespace {

template <class Function>
void find(void* library, Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (!function) throw std::runtime_error(std::string("CUDA's driver has no ") + name);
}

}  // namespace

Driver::Driver() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) throw std::runtime_error(std::string("CUDA's driver: ") + dlerror());
  find(library, error_string, "cuGetErrorString");
  find(library, device, "cuDeviceGet");
  find(library, attribute, "cuDeviceGetAttribute");
  find(library, context_state, "cuDevicePrimaryCtxGetState");
  find(library, granularity, "cuMemGetAllocationGranularity");
  find(library, create, "cuMemCreate");
  find(library, release, "cuMemRelease");
  find(library, reserve, "cuMemAddressReserve");
  find(library, unreserve, "cuMemAddressFree");
  find(library, map, "cuMemMap");
  find(library, unmap, "cuMemUnmap");
  find(library, set_access, "cuMemSetAccess");
  find(library, export_handle, "cuMemExportToShareableHandle");
  find(library, import_handle, "cuMemImportFromShareableHandle");
}

const Driver& Driver::get() {
  static const Driver driver;
  return driver;
}

void Driver::check(CUresult result, const std::string& what) const {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  if (error_string(result, &text) != CUDA_SUCCESS) text = "unknown error";
  throw std::runtime_error(what + ": " + text);
}

}  // namespace ringreduce::device

#include "gpu/device/cuda/driver.h"

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
#define RINGREDUCE_FIND(name, function) find(library, name, #function);
  RINGREDUCE_DRIVER_FUNCTIONS(RINGREDUCE_FIND)
#undef RINGREDUCE_FIND
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

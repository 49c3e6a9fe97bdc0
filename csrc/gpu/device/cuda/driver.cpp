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
  copy_batch_ = reinterpret_cast<CopyBatch*>(dlsym(library, "cuMemcpyBatchAsync_v2"));
}

void Driver::copy_beside(void* const* to, const void* const* from, const std::size_t* bytes,
                         std::size_t count, CUstream stream) const {
  constexpr int in_stream_order = 1;
  constexpr unsigned beside_kernels = 1;
  constexpr HowToCopy how{in_stream_order, {}, beside_kernels};
  constexpr std::size_t begin = 0;
  check(copy_batch_(to, from, bytes, count, &how, &begin, 1, stream), "copies");
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

#include "gpu/device/library.h"

#include <dlfcn.h>

#include "transport/interface/environment.h"
#include "transport/interface/errors.h"

namespace ringreduce {
namespace {

constexpr const char* cuda_file = "libringreduce_cuda.so";
constexpr const char* cuda_variable = "RINGREDUCE_CUDA_LIBRARY";

std::string path_of_library() {
  if (const std::string chosen = environment(cuda_variable); !chosen.empty()) return chosen;
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&CudaLibrary::get), &here) == 0 || !here.dli_fname) {
    return cuda_file;
  }
  const std::string own = here.dli_fname;
  return own.substr(0, own.rfind('/') + 1) + cuda_file;
}

}  // namespace

void CudaLibrary::check(const char* failure) {
  if (failure) throw Error(failure);
}

void* CudaLibrary::symbol(const char* name) const {
  const std::string whole = std::string("ringreduce_cuda_") + name;
  void* found = dlsym(library_, whole.c_str());
  if (!found) throw Error(std::string(cuda_file) + " has no " + whole + ": it belongs to another version");
  return found;
}

// The library stays loaded: kernels, and memory that peers have mapped, may outlive its users.
CudaLibrary::CudaLibrary() {
  const std::string path = path_of_library();
  library_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library_) throw Error("cannot load the GPU library: " + std::string(dlerror()));
#define RINGREDUCE_FIND(name) find(name, #name);
  RINGREDUCE_DEVICE_FUNCTIONS(RINGREDUCE_FIND)
#undef RINGREDUCE_FIND
}

const CudaLibrary& CudaLibrary::get() {
  static const CudaLibrary library;  // tried again after a failure
  return library;
}

OnDevice::OnDevice(const CudaLibrary& cuda, int device) : cuda_(cuda) {
  CudaLibrary::check(cuda_.enter_device(&before_, device));
  CudaLibrary::check(cuda_.exchange_capture_mode(&capture_mode_));
}

OnDevice::~OnDevice() {
  cuda_.exchange_capture_mode(&capture_mode_);
  cuda_.leave_device(before_);
}

void DestroyedOnDevice::operator()(void* handle) const {
  try {
    const OnDevice there(CudaLibrary::get(), device);
    destroy(handle);
  } catch (const Error&) {  // a GPU that has failed has released everything
  }
}

CudaHandle new_stream(const CudaLibrary& cuda, int device, int priority) {
  const OnDevice there(cuda, device);
  void* stream = nullptr;
  CudaLibrary::check(cuda.create_stream_with_priority(&stream, priority));
  return {stream, {cuda.destroy_stream, device}};
}

CudaHandle new_event(const CudaLibrary& cuda, int device) {
  const OnDevice there(cuda, device);
  void* event = nullptr;
  CudaLibrary::check(cuda.create_event(&event, 0));
  return {event, {cuda.destroy_event, device}};
}

}  // namespace ringreduce

#include "transport/cuda/library.h"

#include <dlfcn.h>

#include <cstdlib>

#include "transport/errors.h"

namespace ringreduce {
namespace {

constexpr const char* file_name = "libringreduce_cuda.so";
constexpr const char* variable = "RINGREDUCE_CUDA_LIBRARY";

std::string path_of_library() {
  if (const char* chosen = std::getenv(variable)) return chosen;
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&CudaLibrary::get), &here) == 0 || !here.dli_fname) {
    return file_name;
  }
  const std::string own = here.dli_fname;
  return own.substr(0, own.rfind('/') + 1) + file_name;
}

}  // namespace

void CudaLibrary::check(const char* failure) {
  if (failure) throw Error(failure);
}

template <class Function>
void CudaLibrary::find_function(Function& function, const char* name) {
  const std::string whole = std::string("ringreduce_cuda_") + name;
  void* found = dlsym(library_, whole.c_str());
  if (!found) throw Error(std::string(file_name) + " has no " + whole + ": it is of another version");
  function = reinterpret_cast<Function>(found);
}

// It stays loaded: kernels, and memory that peers have mapped, may outlive whoever asked for it.
CudaLibrary::CudaLibrary() {
  const std::string path = path_of_library();
  library_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library_) throw Error("the part for GPUs cannot be loaded: " + std::string(dlerror()));
  find_function(count_devices, "count_devices");
  find_function(current_device, "current_device");
  find_function(choose_device, "choose_device");
  find_function(is_in_use, "is_in_use");
  find_function(identify_device, "identify_device");
  find_function(device_of, "device_of");
  find_function(reach, "reach");
  find_function(allocate, "allocate");
  find_function(free, "free");
  find_function(allocate_on_host, "allocate_on_host");
  find_function(free_on_host, "free_on_host");
  find_function(share, "share");
  find_function(map, "map");
  find_function(unmap, "unmap");
  find_function(move, "move");
  find_function(fill, "fill");
  find_function(create_stream, "create_stream");
  find_function(destroy_stream, "destroy_stream");
  find_function(synchronize, "synchronize");
  find_function(is_captured, "is_captured");
  find_function(exchange_capture_mode, "exchange_capture_mode");
  find_function(create_event, "create_event");
  find_function(destroy_event, "destroy_event");
  find_function(record, "record");
  find_function(wait, "wait");
  find_function(is_over, "is_over");
  find_function(combine, "combine");
  find_function(copy, "copy");
  find_function(fit, "fit");
  find_function(interpret, "interpret");
  find_function(one_shot, "one_shot");
  find_function(direct, "direct");
}

const CudaLibrary& CudaLibrary::get() {
  static const CudaLibrary library;  // tried again where it has failed
  return library;
}

OnDevice::OnDevice(const CudaLibrary& cuda, int device) : cuda_(cuda) {
  CudaLibrary::check(cuda_.current_device(&before_));
  CudaLibrary::check(cuda_.choose_device(device));
  CudaLibrary::check(cuda_.exchange_capture_mode(&mode_));
}

OnDevice::~OnDevice() {
  cuda_.exchange_capture_mode(&mode_);
  cuda_.choose_device(before_);
}

CudaHandle new_stream(const CudaLibrary& cuda, int device) {
  const OnDevice there(cuda, device);
  void* stream = nullptr;
  CudaLibrary::check(cuda.create_stream(&stream));
  return {stream, cuda.destroy_stream};
}

CudaHandle new_event(const CudaLibrary& cuda, int device) {
  const OnDevice there(cuda, device);
  void* event = nullptr;
  CudaLibrary::check(cuda.create_event(&event));
  return {event, cuda.destroy_event};
}

}  // namespace ringreduce

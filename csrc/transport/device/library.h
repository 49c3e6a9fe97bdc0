// libringreduce_cuda.so, loaded at run time: so one build serves machines with and without GPUs.
#pragma once

#include <memory>
#include <string>

#include "transport/device/cuda/entry_points.h"

namespace ringreduce {

class CudaLibrary {
 public:
  // Loads it once for the process: RINGREDUCE_CUDA_LIBRARY, or else the file beside this library. Throws
  // Error, which says why there is none, or why no GPU can be used.
  static const CudaLibrary& get();

  // As in transport/device/cuda/entry_points.h. What they return goes to check().
  decltype(&ringreduce_cuda_count_devices) count_devices;
  decltype(&ringreduce_cuda_current_device) current_device;
  decltype(&ringreduce_cuda_choose_device) choose_device;
  decltype(&ringreduce_cuda_is_in_use) is_in_use;
  decltype(&ringreduce_cuda_identify_device) identify_device;
  decltype(&ringreduce_cuda_device_of) device_of;
  decltype(&ringreduce_cuda_reach) reach;
  decltype(&ringreduce_cuda_allocate) allocate;
  decltype(&ringreduce_cuda_free) free;
  decltype(&ringreduce_cuda_allocate_on_host) allocate_on_host;
  decltype(&ringreduce_cuda_free_on_host) free_on_host;
  decltype(&ringreduce_cuda_share) share;
  decltype(&ringreduce_cuda_map) map;
  decltype(&ringreduce_cuda_unmap) unmap;
  decltype(&ringreduce_cuda_move) move;
  decltype(&ringreduce_cuda_fill) fill;
  decltype(&ringreduce_cuda_create_stream) create_stream;
  decltype(&ringreduce_cuda_destroy_stream) destroy_stream;
  decltype(&ringreduce_cuda_synchronize) synchronize;
  decltype(&ringreduce_cuda_is_captured) is_captured;
  decltype(&ringreduce_cuda_exchange_capture_mode) exchange_capture_mode;
  decltype(&ringreduce_cuda_create_event) create_event;
  decltype(&ringreduce_cuda_destroy_event) destroy_event;
  decltype(&ringreduce_cuda_record) record;
  decltype(&ringreduce_cuda_wait) wait;
  decltype(&ringreduce_cuda_is_over) is_over;

  // Another entry point, `ringreduce_cuda_` and its name. Throws Error where the library has none.
  template <class Function>
  void find(Function& function, const char* name) const {
    function = reinterpret_cast<Function>(symbol(name));
  }

  // Throws Error with what an entry point has said, if anything.
  static void check(const char* failure);

 private:
  CudaLibrary();
  void* symbol(const char* name) const;

  void* library_ = nullptr;
};

// The calling thread's current device is this one for a while, and captures of streams do not mind what is
// allocated meanwhile.
class OnDevice {
 public:
  OnDevice(const CudaLibrary& cuda, int device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  const CudaLibrary& cuda_;
  int before_ = 0;
  int mode_ = 2;
};

// A stream, or an event.
using CudaHandle = std::unique_ptr<void, const char* (*)(void*)>;
CudaHandle new_stream(const CudaLibrary& cuda, int device);
CudaHandle new_event(const CudaLibrary& cuda, int device);

}  // namespace ringreduce

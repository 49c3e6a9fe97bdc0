// libringreduce_cuda.so, loaded at run time, so that one build serves machines with and without GPUs.
#pragma once

#include <memory>
#include <string>

#include "gpu/device/cuda/entry_points.h"

namespace ringreduce {

// The functions that the engine calls, except kernels.
#define RINGREDUCE_DEVICE_FUNCTIONS(X) \
  X(count_devices)                     \
  X(current_device)                    \
  X(enter_device)                      \
  X(leave_device)                      \
  X(identify_device)                   \
  X(device_of)                         \
  X(reach)                             \
  X(admit)                             \
  X(allocate)                          \
  X(free)                              \
  X(allocate_on_host)                  \
  X(free_on_host)                      \
  X(pin_on_host)                       \
  X(unpin_on_host)                     \
  X(allocations)                       \
  X(share)                             \
  X(unshare)                           \
  X(map)                               \
  X(unmap)                             \
  X(move)                              \
  X(move_all)                          \
  X(fill)                              \
  X(create_stream_with_priority)       \
  X(destroy_stream)                    \
  X(synchronize)                       \
  X(is_captured)                       \
  X(hold_in_graph)                     \
  X(exchange_capture_mode)             \
  X(create_event)                      \
  X(destroy_event)                     \
  X(record)                            \
  X(wait)                              \
  X(is_over)                           \
  X(post)                              \
  X(hold)

class CudaLibrary {
 public:
  // Loads the library once per process: RINGREDUCE_CUDA_LIBRARY, or the file beside this library. Throws
  // Error with the reason if there is no library, or no usable GPU.
  static const CudaLibrary& get();

  // As in gpu/device/cuda/entry_points.h. Pass what they return to check().
#define RINGREDUCE_MEMBER(name) decltype(&ringreduce_cuda_##name) name;
  RINGREDUCE_DEVICE_FUNCTIONS(RINGREDUCE_MEMBER)
#undef RINGREDUCE_MEMBER

  // Another entry point, `ringreduce_cuda_` and its name. Throws Error if the library has none.
  template <class Function>
  void find(Function& function, const char* name) const {
    function = reinterpret_cast<Function>(symbol(name));
  }

  // Throws Error with the failure that an entry point reports, if any.
  static void check(const char* failure);

 private:
  CudaLibrary();
  void* symbol(const char* name) const;

  void* library_ = nullptr;
};

// Makes a device the calling thread's current one for a while. CUDA gives a thread without a device the first
// GPU, and makes a context there. Every call that does not concern the current device therefore lies within
// one of these.
//
// Allocations, queries and waits of the thread inside it do not disturb captures of streams. Otherwise CUDA
// would refuse it and spoil the captures: this thread's own and, unless they are thread-local, those of all
// others.
class OnDevice {
 public:
  OnDevice(const CudaLibrary& cuda, int device);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  const CudaLibrary& cuda_;
  void* before_ = nullptr;
  int capture_mode_ = 2;
};

// A stream, or an event.
struct DestroyedOnDevice {
  const char* (*destroy)(void*);
  int device;
  void operator()(void* handle) const;
};
using CudaHandle = std::unique_ptr<void, DestroyedOnDevice>;
CudaHandle new_stream(const CudaLibrary& cuda, int device, int priority = 0);
CudaHandle new_event(const CudaLibrary& cuda, int device);

}  // namespace ringreduce

// A collective of arrays in GPU memory that runs on the communicator's own stream, beside its caller's.
#pragma once

#include <atomic>

#include "engine/device/device.h"
#include "gpu/device/library.h"

namespace ringreduce {

class GpuWork : public DeviceWork {
 public:
  explicit GpuWork(int device)
      : cuda_(CudaLibrary::get()), device_(device), event_(new_event(cuda_, device)) {}

  int device() const override { return device_; }
  // It represents the stream's work so far.
  void record(void* stream) {
    const OnDevice there(cuda_, device_);
    CudaLibrary::check(cuda_.record(event_.get(), stream));
  }
  // The same, once the call is on the stream.
  void launched(void* stream) {
    record(stream);
    launched_ = true;
  }
  bool is_over() const { return launched_ && done(); }
  void let_wait(void* stream) const override {
    const OnDevice there(cuda_, device_);
    CudaLibrary::check(cuda_.wait(event_.get(), stream));
  }
  bool done() const override {
    const OnDevice there(cuda_, device_);
    int over = 0;
    CudaLibrary::check(cuda_.is_over(&over, event_.get()));
    return over != 0;
  }

 private:
  const CudaLibrary& cuda_;
  const int device_;
  const CudaHandle event_;
  std::atomic<bool> launched_{false};
};

}  // namespace ringreduce

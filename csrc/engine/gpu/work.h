// A collective of arrays in GPU memory that runs on a stream of the communicator's own, beside its caller's.
#pragma once

#include "transport/device/library.h"

namespace ringreduce {

class GpuWork {
 public:
  explicit GpuWork(int device);

  int device() const { return device_; }
  // It is what the stream has to do now.
  void record(void* stream);
  // What comes to the stream later waits for it.
  void let_wait(void* stream) const;
  bool done() const;

 private:
  const CudaLibrary& cuda_;
  const int device_;
  const CudaHandle event_;
};

}  // namespace ringreduce

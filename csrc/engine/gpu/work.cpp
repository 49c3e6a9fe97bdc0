#include "engine/gpu/work.h"

namespace ringreduce {

GpuWork::GpuWork(int device) : cuda_(CudaLibrary::get()), device_(device), event_(new_event(cuda_, device)) {}

void GpuWork::record(void* stream) {
  const OnDevice there(cuda_, device_);
  CudaLibrary::check(cuda_.record(event_.get(), stream));
}

void GpuWork::let_wait(void* stream) const {
  const OnDevice there(cuda_, device_);
  CudaLibrary::check(cuda_.wait(event_.get(), stream));
}

bool GpuWork::done() const {
  const OnDevice there(cuda_, device_);
  int over = 0;
  CudaLibrary::check(cuda_.is_over(&over, event_.get()));
  return over != 0;
}

}  // namespace ringreduce

// The kernels of libringreduce_cuda.so.
#pragma once

#include "gpu/device/library.h"
#include "gpu/kernels/cuda/entry_points.h"
#include "reduce/dtype.h"

namespace ringreduce {

struct KernelLibrary {
  // Throws Error like CudaLibrary::get().
  static const KernelLibrary& get() {
    static const KernelLibrary library;
    return library;
  }

  // As in gpu/reduce/entry_points.h and gpu/kernels/cuda/entry_points.h.
  decltype(&ringreduce_cuda_load) load;
  decltype(&ringreduce_cuda_combine) combine;
  decltype(&ringreduce_cuda_copy) copy;
  decltype(&ringreduce_cuda_combine_coded) combine_coded;
  decltype(&ringreduce_cuda_fit) fit;
  decltype(&ringreduce_cuda_run) run;
  decltype(&ringreduce_cuda_carry) carry;

  // Copies one span to another, on the current device's stream; the second function copies values, each times
  // a factor.
  void copy_span(void* to, const void* from, std::size_t bytes, void* stream) const {
    if (bytes > 0 && to != from) CudaLibrary::check(copy(&to, 1, from, bytes, stream, 0));
  }
  void scale_span(DType dtype, void* to, const void* from, std::size_t count, double factor,
                  void* stream) const {
    if (count == 0) return;
    CudaLibrary::check(combine(static_cast<int>(dtype), static_cast<int>(scaling), &to, 1, &from, 1, count,
                               factor, stream, 0));
  }

 private:
  KernelLibrary() {
    const CudaLibrary& cuda = CudaLibrary::get();
    cuda.find(load, "load");
    cuda.find(combine, "combine");
    cuda.find(copy, "copy");
    cuda.find(combine_coded, "combine_coded");
    cuda.find(fit, "fit");
    cuda.find(run, "run");
    cuda.find(carry, "carry");
  }
};

}  // namespace ringreduce

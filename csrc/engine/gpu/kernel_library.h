// The kernels of libringreduce_cuda.so.
#pragma once

#include "engine/gpu/kernels/cuda/entry_points.h"
#include "transport/device/library.h"

namespace ringreduce {

struct KernelLibrary {
  // Throws Error, as CudaLibrary::get() does.
  static const KernelLibrary& get() {
    static const KernelLibrary library;
    return library;
  }

  // As in reduce/cuda/entry_points.h and engine/gpu/kernels/cuda/entry_points.h.
  decltype(&ringreduce_cuda_combine) combine;
  decltype(&ringreduce_cuda_copy) copy;
  decltype(&ringreduce_cuda_fit) fit;
  decltype(&ringreduce_cuda_interpret) interpret;
  decltype(&ringreduce_cuda_one_shot) one_shot;
  decltype(&ringreduce_cuda_direct) direct;

 private:
  KernelLibrary() {
    const CudaLibrary& cuda = CudaLibrary::get();
    cuda.find(combine, "combine");
    cuda.find(copy, "copy");
    cuda.find(fit, "fit");
    cuda.find(interpret, "interpret");
    cuda.find(one_shot, "one_shot");
    cuda.find(direct, "direct");
  }
};

}  // namespace ringreduce

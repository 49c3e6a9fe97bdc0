// Makes the engine know of GPUs. Nothing calls this file, so the library must be linked from its objects, not
// from an archive, of which the linker takes what is called.
#include "engine/device/device.h"
#include "gpu/calls/collectives.h"
#include "gpu/device/library.h"
#include "gpu/libnccl/library.h"

namespace ringreduce {
namespace {

class Gpus : public Devices {
 public:
  Gpus() { add(*this); }

  std::unique_ptr<DeviceCalls> calls_of(Calls& calls, Progress& progress, Exchange exchange,
                                        GpuCollectives::Another another) const override {
    return std::make_unique<GpuCollectives>(calls, progress, std::move(exchange), std::move(another));
  }

  int device_of(const void* memory) const override {
    const CudaLibrary& cuda = CudaLibrary::get();
    int device = 0;
    CudaLibrary::check(memory ? cuda.device_of(&device, memory) : cuda.current_device(&device));
    return device;
  }

  void copy(int device, void* to, const void* from, std::size_t bytes, void* stream) const override {
    const CudaLibrary& cuda = CudaLibrary::get();
    const OnDevice there(cuda, device);
    CudaLibrary::check(cuda.move(to, from, bytes, stream));
    CudaLibrary::check(cuda.synchronize(stream));
  }

  void find_nccl_by(std::string (*finder)()) const override { NcclLibrary::set_finder(finder); }
};

const Gpus gpus;

}  // namespace
}  // namespace ringreduce

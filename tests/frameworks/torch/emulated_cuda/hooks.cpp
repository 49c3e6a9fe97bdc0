// What torch asks of an accelerator before it computes gradients on one. It asks once, so this must be loaded
// before torch.
#include <ATen/detail/CUDAHooksInterface.h>

#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include "gpu/device/cuda/entry_points.h"
#include "streams.h"

namespace ringreduce::emulated_torch {

struct CUDAHooks : public at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void init() const override {}
  c10::DeviceIndex deviceCount() const override {
    int count = 0;
    check(ringreduce_cuda_count_devices(&count));
    return static_cast<c10::DeviceIndex>(count);
  }
  int getNumGPUs() const override { return deviceCount(); }
  c10::DeviceIndex current_device() const override { return getCurrentDevice(); }
  c10::DeviceIndex getCurrentDevice() const override {
    int device = 0;
    check(ringreduce_cuda_current_device(&device));
    return static_cast<c10::DeviceIndex>(device);
  }
};

// DistributedDataParallel's, which has nothing to say.
struct Timer : public c10d::Timer {
  explicit Timer(c10::Device) {}
  std::optional<std::int64_t> measureDifference(Event, Event) override { return std::nullopt; }
};

}  // namespace ringreduce::emulated_torch

namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, ringreduce::emulated_torch::Timer)
}  // namespace c10d

namespace at {
using ringreduce::emulated_torch::CUDAHooks;
REGISTER_CUDA_HOOKS(CUDAHooks)
}  // namespace at

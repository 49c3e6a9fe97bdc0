#include "fronts/torch/allocator.h"

#include <c10/core/CPUAllocator.h>

#include <cstdint>
#include <mutex>

#include "fronts/shared/group.h"

namespace ringreduce::torch_backend {
namespace {

constexpr std::size_t least = std::size_t{256} << 10;  // smaller messages are copied as fast as they are read

c10::Allocator* usual = nullptr;

// Memory of either kind: torch wants one deleter for all that an allocator has made. Blocks begin on pages.
void release(void* memory) {
  const bool may_be_block = reinterpret_cast<std::uintptr_t>(memory) % 4096 == 0;
  if (!memory || !may_be_block || !free_block(memory)) return usual->raw_deallocate(memory);
  c10::profiledCPUMemoryReporter().Delete(memory);
}

class TensorAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    void* memory = bytes < least ? nullptr : allocate_block(bytes, false);
    if (memory) {
      c10::profiledCPUMemoryReporter().New(memory, bytes);
    } else {
      memory = usual->raw_allocate(bytes);
    }
    return {memory, memory, release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

}  // namespace

bool allocate_tensors() {
  static const bool allocates = [] {
    usual = c10::GetCPUAllocator();
    if (!usual->raw_deleter()) return false;
    c10::SetCPUAllocator(new TensorAllocator(), 1);  // torch keeps it for good
    return true;
  }();
  return allocates;
}

}  // namespace ringreduce::torch_backend

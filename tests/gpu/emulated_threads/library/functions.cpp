// Kernels are loaded by the first launch, or when somebody asks for their attributes. That may wait for all
// that a card runs, and so may a stack that is larger than all before.
#include "functions.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <stdexcept>

#include "capture.h"
#include "devices.h"
#include "gpu/reduce/entry_points.h"
#include "residency.h"

namespace ringreduce::emulated {
namespace {

constexpr std::size_t stack_by_default = 1024;

// Never destroyed: streams' threads may outlive main.
struct Loading {
  std::mutex mutex;
  std::map<int, std::size_t> stacks;  // by device
  std::map<int, int> carveouts;       // of kernels that were launched and wait for others
  std::set<const void*> asked_for;
  int times = 0;
};
Loading& loading() {
  static auto* const made = new Loading;
  return *made;
}

Function& function_at(const void* address) {
  return *static_cast<Function*>(const_cast<void*>(address));
}

// With the lock held.
std::size_t& stack_of(int device) {
  return loading().stacks.try_emplace(device, stack_by_default).first->second;
}

void load(Function& function, int device) {
  if (!function.loaded.insert(device).second || !residency_of(device).is_busy()) return;
  function.loaded.erase(device);
  refuse_during_capture("loading kernels");
  refuse_beside_kernels(device, "loading kernels");
}

// With the lock held. On a card, one that finds a multiprocessor divided otherwise waits until nothing runs
// there.
void check_carveout(const Function& function, int device) {
  if (!function.waits) return;
  const auto chosen = function.carveouts.find(device);
  if (chosen != function.carveouts.end() &&
      loading().carveouts.try_emplace(device, chosen->second).first->second == chosen->second) {
    return;
  }
  throw std::runtime_error("kernels that wait for each other must divide shared memory alike");
}

}  // namespace
}  // namespace ringreduce::emulated

using namespace ringreduce::emulated;

cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  *value = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetLimit(std::size_t* value, cudaLimit) {
  need_context();
  const std::lock_guard lock(loading().mutex);
  *value = stack_of(current_device());
  return cudaSuccess;
}

cudaError_t cudaDeviceSetLimit(cudaLimit, std::size_t value) {
  need_context();
  refuse_during_capture("a larger stack");
  refuse_beside_kernels(current_device(), "a larger stack");
  const std::lock_guard lock(loading().mutex);
  stack_of(current_device()) = value;
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* address) {
  need_context();
  refuse_during_capture("loading kernels");
  const std::lock_guard lock(loading().mutex);
  load(function_at(address), current_device());
  loading().asked_for.insert(address);
  ++loading().times;
  attributes->localSizeBytes = function_at(address).stack_bytes;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* address, cudaFuncAttribute, int value) {
  need_context();
  const std::lock_guard lock(loading().mutex);
  load(function_at(address), current_device());
  function_at(address).carveouts[current_device()] = value;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, std::size_t) {
  *blocks = blocks_that_fit();
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* address, dim3, dim3, void** parameters, std::size_t,
                             cudaStream_t stream) {
  need_context();
  const int device = current_device();
  Function& function = function_at(address);
  {
    const std::lock_guard lock(loading().mutex);
    load(function, device);
    check_carveout(function, device);
    if (stack_of(device) < function.stack_bytes) refuse_beside_kernels(device, "a larger stack");
    stack_of(device) = std::max(stack_of(device), function.stack_bytes);
  }
  function.launch(parameters[0], stream);
  return cudaSuccess;
}

// For tests: how often attributes were asked for, and of how many kernels.
RINGREDUCE_EXPORT int ringreduce_emulated_attributes(int* kernels) {
  const std::lock_guard lock(loading().mutex);
  *kernels = static_cast<int>(loading().asked_for.size());
  return loading().times;
}

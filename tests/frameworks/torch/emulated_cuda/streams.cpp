#include "streams.h"

#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "gpu/device/cuda/entry_points.h"

namespace ringreduce::emulated_torch {
namespace {

using c10::Device;
using c10::DeviceIndex;
using c10::DeviceType;
using c10::Stream;

constexpr std::size_t pool_size = 8;

// Never destroyed: threads may outlive main.
struct Shared {
  std::mutex mutex;
  using Pool = std::pair<DeviceIndex, bool>;  // a device's, of high priority or not
  std::map<Pool, std::vector<Stream>> pools;
  std::map<Pool, std::size_t> taken;
  std::vector<std::pair<std::uintptr_t, c10::StreamId>> records;
};
Shared& shared() {
  static auto* const made = new Shared;
  return *made;
}

std::map<DeviceIndex, c10::StreamId>& current_streams() {
  thread_local std::map<DeviceIndex, c10::StreamId> current;
  return current;
}

class OnDevice {
 public:
  explicit OnDevice(Device device) {
    check(ringreduce_cuda_current_device(&before_));
    check(ringreduce_cuda_choose_device(device.index()));
  }
  ~OnDevice() { ringreduce_cuda_choose_device(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
};

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  DeviceType type() const override { return DeviceType::CUDA; }

  Device getDevice() const override {
    int device = 0;
    check(ringreduce_cuda_current_device(&device));
    return {type(), static_cast<DeviceIndex>(device)};
  }
  void setDevice(Device device) const override { check(ringreduce_cuda_choose_device(device.index())); }
  void uncheckedSetDevice(Device device) const noexcept override {
    ringreduce_cuda_choose_device(device.index());
  }
  Device exchangeDevice(Device device) const override {
    const Device before = getDevice();
    setDevice(device);
    return before;
  }
  DeviceIndex deviceCount() const noexcept override {
    int count = 0;
    return ringreduce_cuda_count_devices(&count) ? DeviceIndex{0} : static_cast<DeviceIndex>(count);
  }

  Stream getStream(Device device) const override { return current_stream(device); }
  Stream getDefaultStream(Device device) const override { return Stream(Stream::DEFAULT, device); }
  Stream getNewStream(Device device, int) const override { return new_stream(device); }
  Stream getStreamFromGlobalPool(Device device, bool high_priority) const override {
    const std::pair which(device.index(), high_priority);
    const std::lock_guard lock(shared().mutex);
    auto& pool = shared().pools[which];
    const std::size_t at = shared().taken[which]++ % pool_size;
    if (at == pool.size()) pool.push_back(new_stream(device, high_priority ? -1 : 0));
    return pool[at];
  }
  Stream exchangeStream(Stream stream) const override {
    const Stream before = current_stream(stream.device());
    current_streams()[stream.device_index()] = stream.id();
    return before;
  }
  void* getStreamNativeHandle(const Stream stream) const override { return handle_of(stream); }

  void record(void** event, const Stream& stream, DeviceIndex, c10::EventFlag) const override {
    const OnDevice there(stream.device());
    if (!*event) check(ringreduce_cuda_create_event(event, 1));
    check(ringreduce_cuda_record(*event, handle_of(stream)));
  }
  void block(void* event, const Stream& stream) const override {
    const OnDevice there(stream.device());
    if (event) check(ringreduce_cuda_wait(event, handle_of(stream)));
  }
  bool queryEvent(void* event) const override {
    int over = 1;
    if (event) check(ringreduce_cuda_is_over(&over, event));
    return over != 0;
  }
  void destroyEvent(void* event, DeviceIndex) const noexcept override {
    if (event) ringreduce_cuda_destroy_event(event);
  }
  void synchronizeEvent(void* event) const override {
    while (!queryEvent(event)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  void synchronizeStream(const Stream& stream) const override {
    const OnDevice there(stream.device());
    check(ringreduce_cuda_synchronize(handle_of(stream)));
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const Stream& stream) const override {
    const std::lock_guard lock(shared().mutex);
    shared().records.emplace_back(reinterpret_cast<std::uintptr_t>(data.get()), stream.id());
  }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

}  // namespace

void check(const char* failure) {
  TORCH_CHECK(!failure, failure);
}

Stream current_stream(Device device) {
  return Stream(Stream::UNSAFE, device, current_streams()[device.index()]);
}

Stream new_stream(Device device, int priority) {
  const OnDevice there(device);
  void* handle = nullptr;
  check(ringreduce_cuda_create_stream_with_priority(&handle, priority));
  return Stream(Stream::UNSAFE, device, reinterpret_cast<c10::StreamId>(handle));
}

void* handle_of(const Stream& stream) {
  return reinterpret_cast<void*>(stream.id());
}

std::vector<std::pair<std::uintptr_t, c10::StreamId>> take_records() {
  const std::lock_guard lock(shared().mutex);
  return std::exchange(shared().records, {});
}

}  // namespace ringreduce::emulated_torch

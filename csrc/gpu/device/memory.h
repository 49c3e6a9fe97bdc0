// Device memory. Before CUDA frees memory, and sometimes before it allocates any, it waits for all work on
// the device. If a kernel there waits for one that this thread is about to launch, that takes forever. Memory
// is therefore allocated when ranks meet, and the process keeps it for later users.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>

#include "gpu/device/library.h"

namespace ringreduce {

class DeviceMemory {
 public:
  // On the device, or, with `on_host`, on the host, where kernels of all devices reach it at the same
  // address. The contents are arbitrary.
  static constexpr int on_host = -1;
  DeviceMemory(const CudaLibrary& cuda, int device, std::size_t bytes);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  char* at() const { return at_; }
  std::size_t bytes() const { return bytes_; }

 private:
  const int device_;
  std::size_t bytes_;
  char* at_ = nullptr;
};

// By address, so that ranks of one process can find and keep each other's. Null: it is gone, or another
// process's.
void know(const std::shared_ptr<DeviceMemory>& memory);
std::shared_ptr<DeviceMemory> find_known(const void* at);

// Hands out parts of one memory.
class DeviceSlab {
 public:
  DeviceSlab(const CudaLibrary& cuda, int device, std::size_t bytes);
  char* at() const { return memory_.at(); }
  std::size_t bytes() const { return memory_.bytes(); }
  // Null if there is no space.
  char* take(std::size_t bytes);
  void give_back(char* part);

 private:
  DeviceMemory memory_;
  std::map<std::size_t, std::size_t> taken_;  // from begin to end
};

}  // namespace ringreduce

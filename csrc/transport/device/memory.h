// Device memory. The system waits for all that runs on a device before it gives memory back, and may do so
// before it hands any out: where a kernel waits for one that this very thread is to launch, for ever. So
// memory is taken when ranks meet, and kept by the process for whoever comes next.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>

#include "transport/device/library.h"

namespace ringreduce {

class DeviceMemory {
 public:
  // Of the device, or `on_host` of the host, where kernels of the current device and of others reach it at
  // the same address. It may hold anything.
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

// Parts of one memory.
class DeviceSlab {
 public:
  DeviceSlab(const CudaLibrary& cuda, int device, std::size_t bytes);
  char* at() const { return memory_.at(); }
  std::size_t bytes() const { return memory_.bytes(); }
  // Null: there is no room.
  char* take(std::size_t bytes);
  void give_back(char* part);

 private:
  DeviceMemory memory_;
  std::map<std::size_t, std::size_t> taken_;  // from where to where
};

}  // namespace ringreduce

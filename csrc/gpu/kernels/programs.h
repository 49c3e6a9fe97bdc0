// Programs in GPU memory, for kernels that walk them, and their temporary memory. Calls with uneven blocks
// may each have a new program. It is copied before its call, on the same stream, and the host does not wait.
// Programs that were not used for a while make room for new ones.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/planning/planner.h"
#include "gpu/device/memory.h"
#include "gpu/kernels/cuda/errand.h"
#include "gpu/runner/runner.h"

namespace ringreduce {

class DevicePrograms {
 public:
  // `mark` returns an event after everything launched so far, which is not recorded again before the next
  // mark. If the host must wait, it waits on `stream`.
  DevicePrograms(const CudaLibrary& cuda, int device, void* stream, std::function<void*()> mark);

  struct Place {
    char* program = nullptr;
    char* temp = nullptr;  // for one call at a time
  };
  // The call's flat program; made the first time. If it is captured, a graph may launch it at any time from
  // now on. The plan's contract and algorithm identify it, together with the call's uneven blocks.
  Place find(const Call& call, const Plan& plan, const device::Boxes& boxes, const Launch& launch);
  std::size_t footprint() const;  // bytes

 private:
  // Its memory on the host has the same layout as that on the device.
  struct Slab {
    Slab(const CudaLibrary& cuda, int device, std::size_t bytes)
        : there(cuda, device, bytes), here(cuda, DeviceMemory::on_host, there.bytes()) {}
    char* copied_from(const char* part) const { return here.at() + (part - there.at()); }
    DeviceSlab there;
    DeviceMemory here;
  };
  struct Stored {
    Slab* slab = nullptr;
    Place place;
    std::uint64_t generation = 0;  // of its last use
  };

  Stored upload(const Plan& plan, const device::Boxes& boxes, const Launch& launch);
  Slab& take(std::size_t bytes, bool captured, char*& part);
  Slab* take_from_slabs(std::size_t bytes, char*& part);
  char* temp_for(std::size_t bytes);
  void begin_generation();

  const CudaLibrary& cuda_;
  const int device_;
  void* const stream_;
  const std::function<void*()> new_mark_;
  std::vector<std::unique_ptr<Slab>> slabs_;
  std::vector<std::unique_ptr<DeviceMemory>> temps_;  // the last one is the largest
  std::unordered_map<std::string, Stored> stored_;
  std::uint64_t generation_ = 1;
  std::size_t taken_ = 0;  // bytes, in this generation
  void* mark_ = nullptr;   // after everything launched before it
};

}  // namespace ringreduce

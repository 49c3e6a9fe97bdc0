// Programs in a GPU's memory, for kernels that walk them, and the temporary memory that they need.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/gpu/kernels/cuda/errand.h"
#include "engine/planning/planner.h"
#include "transport/device/memory.h"

namespace ringreduce {

class DevicePrograms {
 public:
  // `idle` returns when no call is under way that has launched one of them.
  DevicePrograms(const CudaLibrary& cuda, int device, void* stream, std::function<void()> idle);

  struct Place {
    char* program = nullptr;
    char* temp = nullptr;  // for one call at a time
  };
  // The call's, flat; made the first time. `captured`: a graph may launch it at any time from now on. The
  // plan's contract and algorithm stand for all that it is made of but uneven blocks, which are the call's.
  Place find(const Call& call, const Plan& plan, const device::Boxes& boxes, bool captured);
  std::size_t footprint() const;  // bytes

 private:
  struct Stored {
    DeviceSlab* slab = nullptr;
    Place place;
    bool captured = false;
  };

  Stored upload(const Plan& plan, const device::Boxes& boxes, bool captured);
  DeviceSlab& take(std::size_t bytes, bool captured, char*& part);
  DeviceSlab* take_from_slabs(std::size_t bytes, char*& part);
  char* temp_for(std::size_t bytes);
  void make_room();

  const CudaLibrary& cuda_;
  const int device_;
  void* const stream_;
  const std::function<void()> idle_;
  std::vector<std::unique_ptr<DeviceSlab>> slabs_;
  std::vector<std::unique_ptr<DeviceMemory>> temps_;  // the last one is the largest
  std::map<std::string, Stored> stored_;
};

}  // namespace ringreduce

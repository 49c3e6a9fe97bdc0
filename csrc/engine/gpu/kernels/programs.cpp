#include "engine/gpu/kernels/programs.h"

#include <algorithm>
#include <cstring>

#include "engine/gpu/kernels/flatten.h"
#include "transport/interface/errors.h"

namespace ringreduce {
namespace {

// Taken while ranks meet, so that nothing need be taken later as a rule.
constexpr std::size_t slab_bytes = std::size_t{2} << 20, first_temp_bytes = std::size_t{2} << 20;

std::string key_of(const Call& call, const Plan& plan) {
  std::string key(reinterpret_cast<const char*>(&plan.contract), sizeof plan.contract);
  key.append(reinterpret_cast<const char*>(&plan.algorithm), sizeof plan.algorithm);
  for (const Extents* extents : {call.input_extents, call.output_extents}) {
    if (!extents) continue;
    key.append(reinterpret_cast<const char*>(extents->count.data()),
               extents->count.size() * sizeof extents->count[0]);
  }
  return key;
}

}  // namespace

DevicePrograms::DevicePrograms(const CudaLibrary& cuda, int device, void* stream, std::function<void()> idle)
    : cuda_(cuda), device_(device), stream_(stream), idle_(std::move(idle)) {
  slabs_.push_back(std::make_unique<DeviceSlab>(cuda_, device_, slab_bytes));
  temp_for(first_temp_bytes);
}

std::size_t DevicePrograms::footprint() const {
  std::size_t bytes = 0;
  for (const auto& slab : slabs_) bytes += slab->bytes();
  for (const auto& temp : temps_) bytes += temp->bytes();
  return bytes;
}

DevicePrograms::Place DevicePrograms::find(const Call& call, const Plan& plan, const device::Boxes& boxes,
                                           bool captured) {
  const std::string key = key_of(call, plan);
  auto found = stored_.find(key);
  if (found == stored_.end()) found = stored_.emplace(key, upload(plan, boxes, captured)).first;
  found->second.captured |= captured;
  return found->second.place;
}

DevicePrograms::Stored DevicePrograms::upload(const Plan& plan, const device::Boxes& boxes, bool captured) {
  const std::vector<std::byte> flat = flatten(*plan.program, plan.geometry, boxes.arena_bytes);
  device::FlatProgram head;
  std::memcpy(&head, flat.data(), sizeof head);
  Stored stored;
  stored.place.temp = temp_for(head.temp_bytes * static_cast<std::size_t>(boxes.arenas()));
  stored.slab = &take(flat.size(), captured, stored.place.program);
  try {
    CudaLibrary::check(cuda_.move(stored.place.program, flat.data(), flat.size(), stream_));
    CudaLibrary::check(cuda_.synchronize(stream_));
  } catch (...) {
    stored.slab->give_back(stored.place.program);
    throw;
  }
  return stored;
}

DeviceSlab* DevicePrograms::take_from_slabs(std::size_t bytes, char*& part) {
  for (const auto& slab : slabs_) {
    part = slab->take(bytes);
    if (part) return slab.get();
  }
  return nullptr;
}

DeviceSlab& DevicePrograms::take(std::size_t bytes, bool captured, char*& part) {
  DeviceSlab* slab = take_from_slabs(bytes, part);
  // Of a stream that is captured nothing can be waited for.
  if (!slab && !captured) {
    make_room();
    slab = take_from_slabs(bytes, part);
  }
  if (!slab) {
    slabs_.push_back(std::make_unique<DeviceSlab>(cuda_, device_, std::max(slab_bytes, bytes)));
    slab = slabs_.back().get();
    part = slab->take(bytes);
  }
  return *slab;
}

// Those that were taken before are named by programs.
char* DevicePrograms::temp_for(std::size_t bytes) {
  if (temps_.empty() || temps_.back()->bytes() < bytes) {
    temps_.push_back(std::make_unique<DeviceMemory>(cuda_, device_, bytes));
  }
  return temps_.back()->at();
}

// Programs that no graph has go.
void DevicePrograms::make_room() {
  idle_();
  std::erase_if(stored_, [](const auto& entry) {
    const Stored& stored = entry.second;
    if (!stored.captured) stored.slab->give_back(stored.place.program);
    return !stored.captured;
  });
}

}  // namespace ringreduce

#include "gpu/kernels/programs.h"

#include <algorithm>
#include <cstring>

#include "gpu/kernels/flatten.h"
#include "transport/interface/errors.h"

namespace ringreduce {
namespace {

// Allocated while ranks meet, so that later calls usually need no allocation.
constexpr std::size_t slab_bytes = std::size_t{2} << 20, first_temp_bytes = std::size_t{2} << 20;
// There are two generations at a time, their reused programs, and gaps.
constexpr std::size_t generation_bytes = slab_bytes / 4;

// A graph has its own copy, which stays.
std::string key_of(const Call& call, const Plan& plan, bool captured) {
  std::string key(1, captured ? 'c' : ' ');
  key.append(reinterpret_cast<const char*>(&plan.contract), sizeof plan.contract);
  key.append(reinterpret_cast<const char*>(&plan.algorithm), sizeof plan.algorithm);
  for (const Extents* extents : {call.input_extents, call.output_extents}) {
    if (!extents) continue;
    key.append(reinterpret_cast<const char*>(extents->count.data()),
               extents->count.size() * sizeof extents->count[0]);
  }
  return key;
}

}  // namespace

DevicePrograms::DevicePrograms(const CudaLibrary& cuda, int device, void* stream, std::function<void*()> mark)
    : cuda_(cuda), device_(device), stream_(stream), new_mark_(std::move(mark)) {
  slabs_.push_back(std::make_unique<Slab>(cuda_, device_, slab_bytes));
  temp_for(first_temp_bytes);
}

std::size_t DevicePrograms::footprint() const {
  std::size_t bytes = 0;
  for (const auto& slab : slabs_) bytes += slab->there.bytes();
  for (const auto& temp : temps_) bytes += temp->bytes();
  return bytes;
}

DevicePrograms::Place DevicePrograms::find(const Call& call, const Plan& plan, const device::Boxes& boxes,
                                           const Launch& launch) {
  const std::string key = key_of(call, plan, launch.captured);
  auto found = stored_.find(key);
  if (found == stored_.end()) found = stored_.emplace(key, upload(plan, boxes, launch)).first;
  found->second.generation = launch.captured ? ~std::uint64_t{0} : generation_;
  return found->second.place;
}

DevicePrograms::Stored DevicePrograms::upload(const Plan& plan, const device::Boxes& boxes,
                                              const Launch& launch) {
  const std::vector<std::byte> flat = flatten(*plan.program, plan.geometry, boxes.arena_bytes);
  device::FlatProgram head;
  std::memcpy(&head, flat.data(), sizeof head);
  Stored stored;
  char*& program = stored.place.program;
  stored.place.temp = temp_for(head.temp_bytes * static_cast<std::size_t>(boxes.arenas()));
  stored.slab = &take(flat.size(), launch.captured, program);
  char* const copied = stored.slab->copied_from(program);
  std::memcpy(copied, flat.data(), flat.size());
  try {
    // Not part of the graph.
    void* const stream = launch.captured ? stream_ : launch.stream;
    CudaLibrary::check(cuda_.move(program, copied, flat.size(), stream));
    if (launch.captured) CudaLibrary::check(cuda_.synchronize(stream));
  } catch (...) {
    stored.slab->there.give_back(program);
    throw;
  }
  return stored;
}

DevicePrograms::Slab* DevicePrograms::take_from_slabs(std::size_t bytes, char*& part) {
  for (const auto& slab : slabs_) {
    part = slab->there.take(bytes);
    if (part) return slab.get();
  }
  return nullptr;
}

DevicePrograms::Slab& DevicePrograms::take(std::size_t bytes, bool captured, char*& part) {
  // A captured stream cannot be waited for.
  if (!captured && taken_ + bytes > generation_bytes) begin_generation();
  taken_ += bytes;
  Slab* slab = take_from_slabs(bytes, part);
  if (!slab) {
    slabs_.push_back(std::make_unique<Slab>(cuda_, device_, std::max(slab_bytes, bytes)));
    slab = slabs_.back().get();
    part = slab->there.take(bytes);
  }
  return *slab;
}

// Programs refer to earlier ones.
char* DevicePrograms::temp_for(std::size_t bytes) {
  if (temps_.empty() || temps_.back()->bytes() < bytes) {
    temps_.push_back(std::make_unique<DeviceMemory>(cuda_, device_, bytes));
  }
  return temps_.back()->at();
}

// Frees what this generation has not used: all calls that used it were launched before the mark, usually long
// ago.
void DevicePrograms::begin_generation() {
  if (mark_) {
    CudaLibrary::check(cuda_.wait(mark_, stream_));
    CudaLibrary::check(cuda_.synchronize(stream_));
  }
  std::erase_if(stored_, [&](const auto& entry) {
    const Stored& stored = entry.second;
    if (stored.generation >= generation_) return false;
    stored.slab->there.give_back(stored.place.program);
    return true;
  });
  ++generation_;
  taken_ = 0;
  mark_ = new_mark_();
}

}  // namespace ringreduce

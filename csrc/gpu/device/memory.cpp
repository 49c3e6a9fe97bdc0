#include "gpu/device/memory.h"

#include <mutex>
#include <utility>

namespace ringreduce {
namespace {

constexpr std::size_t unit = std::size_t{64} << 10;
constexpr std::size_t slab_unit = 256;  // parts of a slab begin at multiples of this

// Memory that former users gave back, by device and size.
std::mutex spare_mutex;
std::multimap<std::pair<int, std::size_t>, char*> spare;

char* take_spare(int device, std::size_t& bytes) {
  const std::lock_guard lock(spare_mutex);
  const auto found = spare.lower_bound({device, bytes});
  if (found == spare.end() || found->first.first != device || found->first.second > 2 * bytes) return nullptr;
  bytes = found->first.second;
  char* const at = found->second;
  spare.erase(found);
  return at;
}

std::mutex known_mutex;
std::map<const void*, std::weak_ptr<DeviceMemory>> known;

}  // namespace

void know(const std::shared_ptr<DeviceMemory>& memory) {
  const std::lock_guard lock(known_mutex);
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  known[memory->at()] = memory;
}

std::shared_ptr<DeviceMemory> find_known(const void* at) {
  const std::lock_guard lock(known_mutex);
  const auto found = known.find(at);
  return found == known.end() ? nullptr : found->second.lock();
}

DeviceMemory::DeviceMemory(const CudaLibrary& cuda, int device, std::size_t bytes)
    : device_(device), bytes_((bytes + unit - 1) / unit * unit) {
  at_ = take_spare(device_, bytes_);
  if (at_) return;
  void* memory = nullptr;
  if (device_ == on_host) {
    CudaLibrary::check(cuda.allocate_on_host(&memory, bytes_));
  } else {
    const OnDevice there(cuda, device_);
    CudaLibrary::check(cuda.allocate(&memory, bytes_));
  }
  at_ = static_cast<char*>(memory);
}

DeviceMemory::~DeviceMemory() {
  const std::lock_guard lock(spare_mutex);
  spare.emplace(std::pair(device_, bytes_), at_);
}

DeviceSlab::DeviceSlab(const CudaLibrary& cuda, int device, std::size_t bytes)
    : memory_(cuda, device, bytes) {}

// Takes the first gap that is wide enough.
char* DeviceSlab::take(std::size_t bytes) {
  bytes = (bytes + slab_unit - 1) / slab_unit * slab_unit;
  std::size_t begin = 0;
  for (const auto& [from, to] : taken_) {
    if (from - begin >= bytes) break;
    begin = to;
  }
  if (begin + bytes > memory_.bytes()) return nullptr;
  taken_.emplace(begin, begin + bytes);
  return memory_.at() + begin;
}

void DeviceSlab::give_back(char* part) {
  taken_.erase(static_cast<std::size_t>(part - memory_.at()));
}

}  // namespace ringreduce

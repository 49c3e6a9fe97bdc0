#include "transport/ofi/regions.h"

#include <algorithm>
#include <iterator>

#include "transport/memory/block_pool.h"

namespace ringreduce::ofi {

Regions::User Regions::of(const void* data, std::size_t bytes) {
  if (User found = find(data, bytes)) return found;
  const auto whole = block_pool::extent(data, bytes);
  return whole ? add(whole->begin, whole->bytes) : nullptr;
}

Regions::User Regions::of(const Buffer& buffer) {
  if (User found = find(buffer.data, buffer.room)) return found;
  return add(buffer.data, buffer.room);
}

Regions::User Regions::find(const void* data, std::size_t bytes) {
  follow();
  const auto after = map_.upper_bound(static_cast<const std::byte*>(data));
  if (after == map_.begin()) return nullptr;
  const User& region = std::prev(after)->second;
  if (!region->covers(data, bytes)) return nullptr;
  region->used = ++uses_;
  return region;
}

// What overlaps it is what a former block has left, divided otherwise.
Regions::User Regions::add(const std::byte* begin, std::size_t bytes) {
  std::erase_if(map_, [&](const auto& one) {
    return one.second->begin < begin + bytes && begin < one.second->begin + one.second->bytes;
  });
  while (open_ >= device_.most_regions()) {
    if (!make_room()) return nullptr;
  }
  Owned<Memory> memory = device_.registered(begin, bytes);
  while (!memory && make_room()) memory = device_.registered(begin, bytes);
  if (!memory) return nullptr;
  registrations_.add(1);
  ++open_;
  const User region(new Region{begin, bytes, std::move(memory), ++uses_}, [this](const Region* closed) {
    --open_;
    delete closed;
  });
  map_[begin] = region;
  return region;
}

// By closing the region that has not been used for longest, of those that nobody uses.
bool Regions::make_room() {
  auto oldest = map_.end();
  for (auto one = map_.begin(); one != map_.end(); ++one) {
    if (one->second.use_count() > 1) continue;
    if (oldest == map_.end() || one->second->used < oldest->second->used) oldest = one;
  }
  if (oldest == map_.end()) return false;
  map_.erase(oldest);
  return true;
}

void Regions::follow() {
  if (!changes_.is_behind()) [[likely]]
    return;
  changes_.next([this](page_changes::Address begin, page_changes::Address end) {
    std::erase_if(map_, [&](const auto& one) {
      const auto first = reinterpret_cast<page_changes::Address>(one.second->begin);
      return first < end && begin < first + one.second->bytes;
    });
  });
}

}  // namespace ringreduce::ofi

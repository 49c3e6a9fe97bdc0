// Registered memory: whole allocations, each once, as long as its pages stay and there is room for it.
//
// Only memory whose end is noted is registered (see page_changes.h): blocks and arrays of transport/memory,
// and buffers of a Pool. A card reads the pages that an address had when it was registered, and nothing says
// when malloc's are replaced.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "transport/interface/count.h"
#include "transport/interface/page_changes.h"
#include "transport/ofi/device.h"
#include "transport/remote/pool.h"

namespace ringreduce::ofi {

// Not thread-safe. Users leave before it is closed, and it is closed before the device is.
class Regions {
 public:
  struct Region {
    const std::byte* begin;
    std::size_t bytes;
    Owned<Memory> memory;
    std::uint64_t used;  // when, in uses of all
    bool covers(const void* data, std::size_t length) const {
      const auto* first = static_cast<const std::byte*>(data);
      return begin <= first && first + length <= begin + bytes;
    }
  };
  // Those who use it keep it registered.
  using User = std::shared_ptr<Region>;

  explicit Regions(Device& device) : device_(device) {}

  // The region that memory lies in. Null if it is not memory that we register, or if there is no room now.
  User of(const void* data, std::size_t bytes);
  User of(const Buffer& buffer);
  // Forgets regions whose pages have changed.
  void follow();

  std::uint64_t registrations() const { return registrations_; }

 private:
  using Map = std::map<const std::byte*, User>;  // by beginning

  User find(const void* data, std::size_t bytes);
  User add(const std::byte* begin, std::size_t bytes);
  bool make_room();

  Device& device_;
  Map map_;
  page_changes::Follower changes_;
  std::size_t open_ = 0;  // including those that are forgotten but still in use
  std::uint64_t uses_ = 0;
  Count registrations_;
};

}  // namespace ringreduce::ofi

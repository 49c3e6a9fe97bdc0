#include "gpu/runner/pages.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "transport/interface/exchange.h"
#include "transport/tcp/secret.h"

namespace ringreduce {
namespace {

using Mark = std::array<char, 64>;  // at the begin of a part: that the right memory was opened

struct Address {
  std::int32_t process, file;
  Mark mark;
};

}  // namespace

SharedPages::SharedPages(int rank, int world, std::size_t bytes)
    : rank_(rank), parts_(static_cast<std::size_t>(world)) {
  parts_[rank_] = SharedMemory::make(sizeof(Mark) + bytes);
  const std::string mark = random_bytes(sizeof(Mark));
  std::memcpy(parts_[rank_]->base, mark.data(), mark.size());
}

std::string SharedPages::address() const {
  const SharedMemory& own = *parts_[rank_];
  Address address{getpid(), own.fd.get(), {}};
  std::memcpy(address.mark.data(), own.base, sizeof(Mark));
  return bytes_of(address);
}

bool SharedPages::open(const std::vector<std::string>& addresses) try {
  for (std::size_t peer = 0; peer < parts_.size(); ++peer) {
    Address address{};
    std::memcpy(&address, addresses[peer].data(), std::min(addresses[peer].size(), sizeof address));
    if (static_cast<int>(peer) == rank_) continue;
    parts_[peer] = SharedMemory::open(address.process, address.file, parts_[rank_]->bytes);
    if (std::memcmp(parts_[peer]->base, address.mark.data(), sizeof(Mark)) != 0) return false;
  }
  return true;
} catch (const std::exception&) {
  return false;
}

std::byte* SharedPages::of(int rank) const {
  return parts_[rank]->base + sizeof(Mark);
}

}  // namespace ringreduce

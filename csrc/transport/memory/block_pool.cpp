#include "transport/memory/block_pool.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "transport/interface/descriptor.h"
#include "transport/interface/page_changes.h"
#include "transport/memory/block_map.h"
#include "transport/memory/pages.h"
#include "transport/memory/shared_heap.h"

namespace ringreduce::block_pool {
namespace {

constexpr std::size_t least_array = std::size_t{64} << 20, largest_array = std::size_t{1} << 30;
constexpr std::size_t kept = std::size_t{64} << 20;
constexpr std::size_t part_for_gaps = 8;  // an eighth more, for free parts that no request fits into
constexpr std::chrono::seconds remembered{10};
constexpr int pays_from = 2;  // uses; to move a block takes as long as an ordinary call

// The most that has been in use lately.
class Peak {
 public:
  void note(std::size_t live) { now_ = std::max(now_, live); }

  std::size_t look(std::size_t live) {
    const auto time = Clock::now();
    if (time - began_ >= remembered) {
      before_ = time - began_ < 2 * remembered ? now_ : live;
      now_ = live;
      began_ = time;
    }
    return std::max(before_, now_);
  }

 private:
  using Clock = std::chrono::steady_clock;
  std::size_t now_ = 0, before_ = 0;
  Clock::time_point began_ = Clock::now();
};

class Pool {
 public:
  using Place = BlockMap::Place;

  void* allocate(std::size_t bytes, Kind kind) {
    const std::size_t asked = std::max<std::size_t>(bytes, 1), wanted = (asked + page - 1) / page * page;
    if (wanted < asked) return nullptr;
    const std::lock_guard lock(mutex_);
    Place found = find(wanted, kind);
    if (!blocks_.is_block(found)) {
      if (!grow(wanted)) return nullptr;
      found = blocks_.fitting(State::fresh, wanted);
    }
    found = blocks_.take(found, wanted);
    auto& [start, block] = *found;
    if (kind == Kind::shared && block.state != State::shared && !share(*found, false)) {
      blocks_.rest(found);
      return nullptr;
    }
    if (block.state == State::fresh) block.state = State::own;
    block.asked = asked;
    live_ += wanted;
    peak_.note(live_);
    return reinterpret_cast<void*>(start);
  }

  bool free(void* memory) {
    const std::lock_guard lock(mutex_);
    const Place block = starting(memory);
    if (!blocks_.is_block(block)) return false;
    live_ -= block->second.bytes;
    blocks_.rest(block);
    const std::size_t most = peak_.look(live_), limit = std::max(most + most / part_for_gaps, live_ + kept);
    while (live_ + blocks_.free_bytes_with_pages() > limit && drop(blocks_.dispensable())) {
    }
    return true;
  }

  std::optional<std::size_t> size_of(const void* memory) {
    const std::lock_guard lock(mutex_);
    const Place block = starting(memory);
    return blocks_.is_block(block) ? std::optional(block->second.asked) : std::nullopt;
  }

  std::optional<Location> locate(const void* data, std::size_t bytes, bool uses) {
    if (!has_arrays_.load(std::memory_order_relaxed)) return std::nullopt;
    const auto address = reinterpret_cast<Address>(data);
    const std::lock_guard lock(mutex_);
    const Place found = holding(address, bytes);
    if (!blocks_.is_block(found)) return std::nullopt;
    const auto& [start, block] = *found;
    if (uses && block.state == State::own && address == start && bytes >= block.asked) use(*found);
    if (block.state != State::shared) return std::nullopt;
    return block.array->locate(address);
  }

  std::optional<Extent> extent(const void* data, std::size_t bytes) {
    if (!has_arrays_.load(std::memory_order_relaxed)) return std::nullopt;
    const auto address = reinterpret_cast<Address>(data);
    const std::lock_guard lock(mutex_);
    const Place found = holding(address, bytes);
    if (!blocks_.is_block(found)) return std::nullopt;
    const auto& [start, block] = *found;
    return Extent{reinterpret_cast<std::byte*>(start), block.bytes};
  }

  // Before a fork, and after it in the parent and in the child.
  void prepare();
  void resume();
  void inherit();

 private:
  // The block in use that starts there, if any.
  Place starting(const void* memory) {
    const Place block = blocks_.all().find(reinterpret_cast<Address>(memory));
    return blocks_.is_block(block) && !block->second.free() ? block : blocks_.none();
  }

  // The block in use that holds all these bytes, if any.
  Place holding(Address address, std::size_t bytes) {
    const Place found = blocks_.holder(address);
    if (!blocks_.is_block(found)) return found;
    const auto& [start, block] = *found;
    return !block.free() && address + bytes <= start + block.bytes ? found : blocks_.none();
  }

  // Memory with pages comes first, and of that the smaller block.
  Place find(std::size_t wanted, Kind kind) {
    if (kind == Kind::zeroed) return blocks_.fitting(State::fresh, wanted);
    const Place shared = blocks_.fitting(State::shared, wanted), own = blocks_.fitting(State::own, wanted);
    const bool has_shared = blocks_.is_block(shared), has_own = blocks_.is_block(own);
    if (has_shared && (!has_own || kind == Kind::shared || shared->second.bytes <= own->second.bytes))
      return shared;
    return has_own ? own : blocks_.fitting(State::fresh, wanted);
  }

  bool grow(std::size_t wanted) {
    std::size_t addresses = 0;
    for (const auto& [start, array] : arrays_) addresses += array->bytes();
    const std::size_t least = (wanted + huge_page - 1) / huge_page * huge_page;
    const std::size_t usual = std::max(least, std::clamp(addresses / 2, least_array, largest_array));
    return add_array(usual) || add_array(least);
  }

  bool add_array(std::size_t bytes) {
    try {
      auto array = std::make_unique<BlockArray>(bytes);
      blocks_.add(array->start(), {bytes, array.get()});
      arrays_[array->start()] = std::move(array);
      has_arrays_.store(true, std::memory_order_relaxed);
      return true;
    } catch (const std::bad_alloc&) {
      return false;
    }
  }

  // Gives back the pages of a free block, and the array if nothing else is left of it.
  bool drop(Place block) {
    const auto [start, old] = *block;
    blocks_.forget(block);
    page_changes::note(reinterpret_cast<void*>(start), old.bytes);
    if (!old.array->drop(start, old.bytes, old.state == State::shared)) return false;
    const Place whole = blocks_.add(start, {old.bytes, old.array});
    if (whole->second.bytes == old.array->bytes()) {
      blocks_.forget(whole);
      arrays_.erase(old.array->start());
    }
    return true;
  }

  void use(BlockMap::Blocks::value_type& place) {
    auto& [start, block] = place;
    if (++block.uses < pays_from) return;
    block.uses = 0;  // if it cannot move now, it may later
    if (!has_pinned_pages() && !is_registered(reinterpret_cast<void*>(start))) share(place, true);
  }

  bool share(BlockMap::Blocks::value_type& place, bool with_contents) {
    auto& [start, block] = place;
    const bool shared = block.array->share(start, block.bytes, with_contents);
    page_changes::note(reinterpret_cast<void*>(start), block.bytes);
    if (shared) block.state = State::shared;
    return shared;
  }

  std::mutex mutex_;
  BlockMap blocks_;
  std::map<Address, std::unique_ptr<BlockArray>> arrays_;
  std::atomic<bool> has_arrays_{false};
  std::size_t live_ = 0;  // bytes of blocks in use
  Peak peak_;
  Descriptor copied_, copying_;  // the ends of a pipe that the child closes when it has its copy
};

void Pool::prepare() {
  mutex_.lock();
  const auto& all = blocks_.all();
  int ends[2];
  const bool shares =
      std::any_of(all.begin(), all.end(), [](const auto& one) { return one.second.state == State::shared; });
  if (!shares || pipe2(ends, O_CLOEXEC) != 0) return;
  copied_ = Descriptor(ends[0]);
  copying_ = Descriptor(ends[1]);
}

// The child's end is also closed when the child dies.
void Pool::resume() {
  copying_ = Descriptor();
  char nothing;
  while (copied_.get() >= 0 && read(copied_.get(), &nothing, 1) < 0 && errno == EINTR) {
  }
  copied_ = Descriptor();
  mutex_.unlock();
}

// What was private is the child's own already.
void Pool::inherit() {
  std::vector<Address> free;
  for (auto& [start, block] : blocks_.all()) {
    if (block.state != State::shared) continue;
    if (block.free()) {
      free.push_back(start);
    } else {
      block.array->make_private(start, block.bytes);
      block.state = State::own;
    }
  }
  for (const Address start : free) {
    const Place place = blocks_.all().find(start);
    const Block block = place->second;
    blocks_.forget(place);
    if (block.array->leave(start, block.bytes)) blocks_.add(start, {block.bytes, block.array});
  }
  for (const auto& [start, array] : arrays_) array->forget_file();
  copying_ = Descriptor();
  copied_ = Descriptor();
  mutex_.unlock();
}

Pool& the_pool() {
  static Pool* const pool = [] {
    auto* made = new Pool();  // never destroyed: blocks may be freed while the process ends
    pthread_atfork([] { the_pool().prepare(); }, [] { the_pool().resume(); }, [] { the_pool().inherit(); });
    return made;
  }();
  return *pool;
}

}  // namespace

void* allocate(std::size_t bytes, Kind kind) {
  return the_pool().allocate(bytes, kind);
}

bool free(void* memory) {
  return the_pool().free(memory);
}

std::optional<std::size_t> size_of(const void* memory) {
  return the_pool().size_of(memory);
}

std::optional<Location> locate(const void* data, std::size_t bytes) {
  const auto place = the_pool().locate(data, bytes, false);
  return place ? place : shared_heap::locate(data, bytes);
}

std::optional<Extent> extent(const void* data, std::size_t bytes) {
  const auto found = the_pool().extent(data, bytes);
  return found ? found : shared_heap::extent(data, bytes);
}

std::optional<Location> reach(const void* data, std::size_t bytes) {
  const auto place = the_pool().locate(data, bytes, true);
  return place ? place : shared_heap::locate(data, bytes);
}

}  // namespace ringreduce::block_pool

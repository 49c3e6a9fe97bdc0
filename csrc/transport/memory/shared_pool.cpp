#include "transport/memory/shared_pool.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <utility>

#include "transport/interface/descriptor.h"
#include "transport/memory/shared_heap.h"

namespace ringreduce::shared_pool {
namespace {

constexpr std::size_t page = 4096;
constexpr std::size_t huge_page = std::size_t{2} << 20;
constexpr std::size_t least_array = std::size_t{4} << 20, usual_array = std::size_t{64} << 20;
constexpr std::size_t kept = std::size_t{64} << 20;  // free bytes that do not go back to the system

using Address = std::uintptr_t;

std::size_t rounded(std::size_t bytes, std::size_t to) {
  return (bytes + to - 1) / to * to;
}

class Pool {
 public:
  void* allocate(std::size_t bytes) {
    const std::size_t wanted = rounded(std::max<std::size_t>(bytes, 1), page);
    if (wanted < bytes) return nullptr;
    std::lock_guard lock(mutex_);
    auto fit = idle_.lower_bound({wanted, 0});
    if (fit == idle_.end()) {
      if (!grow(wanted)) return nullptr;
      fit = idle_.lower_bound({wanted, 0});
    }
    const auto [size, address] = *fit;
    idle_.erase(fit);
    Block& block = blocks_.at(address);
    block.free = false;
    if (size > wanted) {
      block.bytes = wanted;
      blocks_[address + wanted] = {size - wanted, block.array, true};
      idle_.insert({size - wanted, address + wanted});
    }
    live_ += wanted;
    return reinterpret_cast<void*>(address);
  }

  bool free(void* memory) {
    const auto address = reinterpret_cast<Address>(memory);
    std::lock_guard lock(mutex_);
    if (free_inherited(address)) return true;
    auto found = blocks_.find(address);
    if (found == blocks_.end() || found->second.free) return false;
    live_ -= found->second.bytes;
    found->second.free = true;
    found = joined(found);
    const auto [start, block] = *found;
    if (block.bytes == arrays_.at(block.array).bytes && bytes_ - live_ > std::max(kept, live_)) {
      blocks_.erase(found);
      arrays_.erase(block.array);
      bytes_ -= block.bytes;
      shared_heap::free(reinterpret_cast<void*>(start));
    } else {
      idle_.insert({block.bytes, start});
    }
    return true;
  }

  Usage usage() {
    std::lock_guard lock(mutex_);
    return {arrays_.size(), bytes_, live_};
  }

  // Before a fork, and after it in the parent and in the child.
  void prepare();
  void resume();
  void inherit();

 private:
  struct Block {
    std::size_t bytes = 0;
    Address array = 0;
    bool free = false;
  };
  using Blocks = std::map<Address, Block>;
  struct Array {
    std::size_t bytes = 0;
    int fd = -1;
  };

  bool grow(std::size_t wanted) {
    const std::size_t more = std::clamp(bytes_, least_array, usual_array);
    const std::size_t size = rounded(std::max(wanted, more), huge_page);
    void* memory = nullptr;
    try {
      memory = shared_heap::allocate(size);
    } catch (const std::bad_alloc&) {
      return false;
    }
    const auto place = shared_heap::locate(memory, 1);
    if (!place) {  // the system has no memory that others can open
      shared_heap::free(memory);
      return false;
    }
    const auto address = reinterpret_cast<Address>(memory);
    arrays_[address] = {size, place->fd};
    blocks_[address] = {size, address, true};
    idle_.insert({size, address});
    bytes_ += size;
    return true;
  }

  // With the free blocks before and after it, of the same array; not among the idle ones.
  Blocks::iterator joined(Blocks::iterator block) {
    const auto next = std::next(block);
    if (next != blocks_.end() && next->second.free && next->second.array == block->second.array) {
      idle_.erase({next->second.bytes, next->first});
      block->second.bytes += next->second.bytes;
      blocks_.erase(next);
    }
    if (block == blocks_.begin()) return block;
    const auto before = std::prev(block);
    if (!before->second.free || before->second.array != block->second.array) return block;
    idle_.erase({before->second.bytes, before->first});
    before->second.bytes += block->second.bytes;
    blocks_.erase(block);
    return before;
  }

  bool free_inherited(Address address) {
    const auto found = inherited_.find(address);
    if (found == inherited_.end()) return false;
    madvise(reinterpret_cast<void*>(address), found->second, MADV_DONTNEED);
    inherited_.erase(found);
    return true;
  }

  std::mutex mutex_;
  Blocks blocks_;                                   // all, by address
  std::set<std::pair<std::size_t, Address>> idle_;  // the free ones
  std::map<Address, Array> arrays_;
  std::map<Address, std::size_t> inherited_;  // blocks of the process that has forked this one
  std::size_t bytes_ = 0, live_ = 0;
  Descriptor copied_, copying_;  // the ends of a pipe that the child closes when it has its copy
};

void Pool::prepare() {
  mutex_.lock();
  int ends[2];
  if (live_ == 0 || pipe2(ends, O_CLOEXEC) != 0) return;
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

// Private memory takes the place of each array. Without room for a copy the child's writes are private at
// least.
void Pool::inherit() {
  for (const auto& [start, made] : arrays_) {
    const auto [size, fd] = made;
    void* array = reinterpret_cast<void*>(start);
    void* copy = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) {
      mmap(array, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, 0);
      continue;
    }
    madvise(copy, size, MADV_HUGEPAGE);
    for (auto block = blocks_.lower_bound(start); block != blocks_.end() && block->first < start + size;
         ++block) {
      if (block->second.free) continue;
      std::memcpy(static_cast<std::byte*>(copy) + (block->first - start),
                  reinterpret_cast<void*>(block->first), block->second.bytes);
    }
    mremap(copy, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, array);
  }
  for (const auto& [start, block] : blocks_) {
    if (!block.free) inherited_[start] = block.bytes;
  }
  blocks_.clear();
  idle_.clear();
  arrays_.clear();
  bytes_ = live_ = 0;
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

void* allocate(std::size_t bytes) {
  return the_pool().allocate(bytes);
}

bool free(void* memory) {
  return the_pool().free(memory);
}

Usage usage() {
  return the_pool().usage();
}

}  // namespace ringreduce::shared_pool

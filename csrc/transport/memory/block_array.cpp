#include "transport/memory/block_array.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "transport/memory/pages.h"
#include "transport/memory/shared_heap.h"

namespace ringreduce {
namespace {

void* pointer(BlockArray::Address address) {
  return reinterpret_cast<void*>(address);
}

bool map_private(void* where, std::size_t bytes) {
  constexpr int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
  if (mmap(where, bytes, PROT_READ | PROT_WRITE, flags, -1, 0) == MAP_FAILED) return false;
  madvise(where, bytes, MADV_HUGEPAGE);
  return true;
}

// At an address with the same place in a huge page as `like`, so that pages can change places as a whole.
void* reserve_like(BlockArray::Address like, std::size_t bytes) {
  try {
    return reserve_addresses(bytes, like % huge_page);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

}  // namespace

BlockArray::BlockArray(std::size_t bytes) : bytes_(bytes), huge_(bytes / huge_page) {
  void* const room = reserve_addresses(bytes, 0);
  start_ = reinterpret_cast<Address>(room);
  if (map_private(room, bytes)) return;
  munmap(room, bytes);
  throw std::bad_alloc();
}

BlockArray::~BlockArray() {
  munmap(pointer(start_), bytes_);
}

bool BlockArray::open_file() {
  if (file_.get() >= 0) return true;
  try {
    file_ = make_memory_file(bytes_, "ringreduce");
  } catch (const std::bad_alloc&) {
    return false;
  }
  number_ = shared_heap::number_of_new_array();
  std::fill(huge_.begin(), huge_.end(), false);
  return file_.get() >= 0;
}

// One huge page at a time: no more exists twice, and the next one gets memory that is still in the caches.
bool BlockArray::share(Address part, std::size_t bytes, bool with_contents) {
  if (!open_file()) return false;
  for (Address at = part; at < part + bytes;) {
    const Address next = std::min((at / huge_page + 1) * huge_page, part + bytes);
    if (!move(at, next - at, with_contents)) {
      if (at > part) make_private(part, at - part);
      return false;
    }
    at = next;
  }
  return true;
}

// The whole huge page of the memfd is taken, also for what surrounds the part: the next parts find it there.
bool BlockArray::move(Address part, std::size_t bytes, bool with_contents) {
  const Address first = part / huge_page * huge_page;
  constexpr int flags = MAP_SHARED | MAP_FIXED;
  void* const view = reserve_like(first, huge_page);
  if (!view) return false;
  const auto offset = static_cast<off_t>(part - start_), offset_of_view = static_cast<off_t>(first - start_);
  const bool viewed =
      mmap(view, huge_page, PROT_READ | PROT_WRITE, flags, file_.get(), offset_of_view) != MAP_FAILED;
  if (viewed) {
    if (!*huge_at(first)) take_huge_pages(view, huge_page);
    *huge_at(first) = true;
    if (with_contents) std::memcpy(static_cast<std::byte*>(view) + (part - first), pointer(part), bytes);
  }
  munmap(view, huge_page);
  if (!viewed || mmap(pointer(part), bytes, PROT_READ | PROT_WRITE, flags | MAP_POPULATE, file_.get(),
                      offset) == MAP_FAILED) {
    return false;
  }
  madvise(pointer(part), bytes, MADV_HUGEPAGE);
  return true;
}

void BlockArray::make_private(Address part, std::size_t bytes) {
  void* const copy = reserve_like(part, bytes);
  if (copy && map_private(copy, bytes)) {
    std::memcpy(copy, pointer(part), bytes);
    if (mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, pointer(part)) != MAP_FAILED) return;
  }
  if (copy) munmap(copy, bytes);
  const auto offset = static_cast<off_t>(part - start_);
  static_cast<void>(
      mmap(pointer(part), bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file_.get(), offset));
}

bool BlockArray::drop(Address part, std::size_t bytes, bool shared) {
  if (shared) {  // peers may keep their mapping for long
    std::fill(huge_at(part), huge_at(part + bytes + huge_page - 1), false);
    fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(part - start_),
              static_cast<off_t>(bytes));
  }
  return leave(part, bytes);
}

bool BlockArray::leave(Address part, std::size_t bytes) {
  return map_private(pointer(part), bytes);
}

}  // namespace ringreduce

#include "transport/memory/shared_heap.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <map>
#include <new>
#include <shared_mutex>

#include "transport/interface/errors.h"
#include "transport/interface/of_process.h"
#include "transport/interface/page_changes.h"

namespace ringreduce {
std::shared_ptr<SharedMemory> SharedMemory::make(std::size_t bytes, const char* name) {
  auto memory = std::make_shared<SharedMemory>();
  memory->bytes = SegmentLayout::align(bytes, page);
  memory->fd = make_memory_file(memory->bytes, name);
  memory->map(memory->fd.get());
  return memory;
}

std::shared_ptr<SharedMemory> SharedMemory::open(pid_t pid, int fd, std::size_t least) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  auto memory = std::make_shared<SharedMemory>();
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct stat status{};
  if (file.get() < 0 || fstat(file.get(), &status) != 0) {
    throw Error("cannot open shared memory of process " + std::to_string(pid) + " (" + path +
                "): " + std::strerror(errno));
  }
  memory->bytes = static_cast<std::size_t>(status.st_size);
  if (memory->bytes < least) throw Error(path + " is not the announced memory");
  memory->map(file.get());
  return memory;
}

// Large memory lies on a boundary of huge pages in every process. Otherwise the system maps even huge pages
// as small ones, and every 4 KiB costs a walk through the page table.
void SharedMemory::map(int file) {
  const bool huge = bytes >= huge_page;
  void* where = huge ? reserve_addresses(bytes, 0) : nullptr;
  const int flags = MAP_SHARED | (huge ? MAP_FIXED : 0) | (file < 0 ? MAP_ANONYMOUS : 0);
  where = mmap(where, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
  if (where == MAP_FAILED) throw std::bad_alloc();
  base = static_cast<std::byte*>(where);
  if (huge) madvise(base, bytes, MADV_HUGEPAGE);  // optional: without it, it is only slower
}

SharedMemory::~SharedMemory() {
  if (base) munmap(base, bytes);
}

namespace shared_heap {
namespace {

struct Heap {
  struct Array {
    std::shared_ptr<SharedMemory> memory;
    std::uint32_t number;
  };
  std::shared_mutex mutex;
  std::map<std::uintptr_t, Array> arrays;  // by address
  std::atomic<std::uint32_t> made{0};
  std::atomic<std::size_t> live{0};
};

// A forked child shares its parent's arrays but must not answer for them. It begins with an empty heap, and
// inherited arrays stay mapped as ordinary memory.
Heap& the_heap() {
  return of_process<Heap>();
}

// Calls `use` with the array in which all of this lies, if there is one.
template <typename Use>
void with_holder(const void* data, std::size_t bytes, const Use& use) {
  Heap& h = the_heap();
  if (h.live.load(std::memory_order_acquire) == 0) return;
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  std::shared_lock lock(h.mutex);
  const auto after = h.arrays.upper_bound(address);
  if (after == h.arrays.begin()) return;
  const auto& [start, array] = *std::prev(after);
  if (address + bytes <= start + array.memory->bytes) use(array);
}

}  // namespace

std::uint32_t number_of_new_array() {
  return ++the_heap().made;
}

void* allocate(std::size_t bytes) {
  Heap& h = the_heap();
  auto memory = SharedMemory::make(bytes ? bytes : 1);
  if (bytes >= huge_page) take_huge_pages(memory->base, bytes);
  std::unique_lock lock(h.mutex);
  void* where = memory->base;
  h.arrays[reinterpret_cast<std::uintptr_t>(where)] = {std::move(memory), number_of_new_array()};
  h.live.store(h.arrays.size(), std::memory_order_release);
  return where;
}

void free(void* memory) {
  Heap& h = the_heap();
  std::unique_lock lock(h.mutex);
  const auto found = h.arrays.find(reinterpret_cast<std::uintptr_t>(memory));
  if (found == h.arrays.end()) return;  // allocated before a fork: it belongs to the parent
  const SharedMemory& array = *found->second.memory;
  // Peers may keep their mapping for long, but the pages must be freed now.
  fallocate(array.fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(array.bytes));
  page_changes::note(array.base, array.bytes);
  h.arrays.erase(found);
  h.live.store(h.arrays.size(), std::memory_order_release);
}

std::optional<Location> locate(const void* data, std::size_t bytes) {
  std::optional<Location> found;
  with_holder(data, bytes, [&](const Heap::Array& array) {
    const SharedMemory& memory = *array.memory;
    const auto offset = static_cast<std::uint64_t>(static_cast<const std::byte*>(data) - memory.base);
    if (memory.fd.get() >= 0) found = Location{offset, memory.fd.get(), array.number};
  });
  return found;
}

std::optional<Extent> extent(const void* data, std::size_t bytes) {
  std::optional<Extent> found;
  with_holder(data, bytes,
              [&](const Heap::Array& array) { found = Extent{array.memory->base, array.memory->bytes}; });
  return found;
}

}  // namespace shared_heap

std::byte* PeerHeap::resolve(pid_t pid, Location place) {
  std::lock_guard lock(mutex_);
  Mapping& mapping = mapped_[place.fd];
  if (!mapping.memory || mapping.array != place.array) {
    mapping = {SharedMemory::open(pid, place.fd, place.offset), place.array};
  }
  return mapping.memory->base + place.offset;
}

}  // namespace ringreduce

#include "transport/memory/shared_heap.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <new>
#include <shared_mutex>

#include "transport/interface/errors.h"
#include "transport/interface/of_process.h"

namespace ringreduce {
namespace {

constexpr std::size_t huge_page = std::size_t{2} << 20;

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1
#endif

}  // namespace

std::shared_ptr<SharedMemory> SharedMemory::make(std::size_t bytes, const char* name) {
  auto memory = std::make_shared<SharedMemory>();
  memory->bytes = SegmentLayout::align(bytes, 4096);
  rlimit limit{};
  // Exceeding the limit raises a signal that ends the process.
  getrlimit(RLIMIT_FSIZE, &limit);
  if (memory->bytes > limit.rlim_cur) {
    throw NoSharedMemory(
        bytes, "files are limited to " + std::to_string(limit.rlim_cur) + " bytes (RLIMIT_FSIZE, ulimit -f)");
  }
  memory->fd = Descriptor(memfd_create(name, MFD_CLOEXEC));
  const int fd = memory->fd.get();
  const bool refused = fd < 0 && (errno == EPERM || errno == EACCES || errno == ENOSYS);
  if (!refused && (fd < 0 || ftruncate(fd, static_cast<off_t>(memory->bytes)) != 0)) {
    throw NoSharedMemory(bytes, std::strerror(errno));
  }
  fchmod(fd, 0600);  // only this user may open it, even with a path to it
  memory->map(fd);
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
  void* where = nullptr;
  if (huge) {
    void* room =
        mmap(nullptr, bytes + huge_page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) throw std::bad_alloc();
    const auto start = reinterpret_cast<std::uintptr_t>(room);
    const std::uintptr_t aligned = SegmentLayout::align(start, huge_page);
    if (aligned > start) munmap(room, aligned - start);
    const std::uintptr_t end = SegmentLayout::align(aligned + bytes, 4096);
    if (end < start + bytes + huge_page)
      munmap(reinterpret_cast<void*>(end), start + bytes + huge_page - end);
    where = reinterpret_cast<void*>(aligned);
  }
  const int flags = MAP_SHARED | (huge ? MAP_FIXED : 0) | (file < 0 ? MAP_ANONYMOUS : 0);
  where = mmap(where, bytes, PROT_READ | PROT_WRITE, flags, file, 0);
  if (where == MAP_FAILED) throw std::bad_alloc();
  base = static_cast<std::byte*>(where);
  if (huge) madvise(base, bytes, MADV_HUGEPAGE);  // optional: without it, it is only slower
}

SharedMemory::~SharedMemory() {
  if (base) munmap(base, bytes);
}

// Most systems give shared memory huge pages only if a process asks for them page by page. A page must exist
// to be collapsed, so each gets its first byte. Refusal costs only speed.
void SharedMemory::collapse() {
  for (std::size_t at = 0; at + huge_page <= bytes; at += huge_page) {
    reinterpret_cast<volatile std::byte*>(base)[at] = std::byte{0};
  }
  madvise(base, bytes / huge_page * huge_page, MADV_COLLAPSE);
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
  std::uint32_t made = 0;
  std::atomic<std::size_t> live{0};
};

// A forked child shares its parent's arrays but must not answer for them. It begins with an empty heap, and
// inherited arrays stay mapped as ordinary memory.
Heap& the_heap() {
  return of_process<Heap>();
}

}  // namespace

void* allocate(std::size_t bytes) {
  Heap& h = the_heap();
  auto memory = SharedMemory::make(bytes ? bytes : 1);
  if (bytes >= huge_page) memory->collapse();
  std::unique_lock lock(h.mutex);
  void* where = memory->base;
  h.arrays[reinterpret_cast<std::uintptr_t>(where)] = {std::move(memory), ++h.made};
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
  h.arrays.erase(found);
  h.live.store(h.arrays.size(), std::memory_order_release);
}

std::optional<Location> locate(const void* data, std::size_t bytes) {
  Heap& h = the_heap();
  if (h.live.load(std::memory_order_acquire) == 0) return std::nullopt;
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  std::shared_lock lock(h.mutex);
  auto after = h.arrays.upper_bound(address);
  if (after == h.arrays.begin()) return std::nullopt;
  const auto& [start, array] = *--after;
  if (address + bytes > start + array.memory->bytes || array.memory->fd.get() < 0) return std::nullopt;
  return Location{address - start, array.memory->fd.get(), array.number};
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

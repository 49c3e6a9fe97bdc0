#include "transport/shared_heap.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <new>
#include <shared_mutex>

#include "transport/errors.h"

namespace ringreduce {

std::shared_ptr<SharedMemory> SharedMemory::make(std::size_t bytes, bool huge) {
  auto memory = std::make_shared<SharedMemory>();
  memory->bytes = SegmentLayout::align(bytes, 4096);
  memory->fd = memfd_create("ringreduce", MFD_CLOEXEC);
  if (memory->fd < 0 || ftruncate(memory->fd, static_cast<off_t>(memory->bytes)) != 0) throw std::bad_alloc();
  fchmod(memory->fd, 0600);  // whoever else could come by a path to it, it is this user's only
  memory->map(huge);
  return memory;
}

std::shared_ptr<SharedMemory> SharedMemory::open(pid_t pid, int fd, std::size_t bytes) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  auto memory = std::make_shared<SharedMemory>();
  memory->bytes = SegmentLayout::align(bytes, 4096);
  memory->fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat status {};
  if (memory->fd < 0 || fstat(memory->fd, &status) != 0) {
    throw Error("cannot open shared memory of process " + std::to_string(pid) + " (" + path +
                "): " + std::strerror(errno));
  }
  if (status.st_size < static_cast<off_t>(memory->bytes)) throw Error(path + " is not the memory that was announced");
  memory->map(false);
  ::close(memory->fd);  // the mapping stays
  memory->fd = -1;
  return memory;
}

void SharedMemory::map(bool huge) {
  void* where = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (where == MAP_FAILED) throw std::bad_alloc();
  base = static_cast<std::byte*>(where);
  if (huge) madvise(base, bytes, MADV_HUGEPAGE);  // a wish: its refusal costs only speed
}

SharedMemory::~SharedMemory() {
  if (base) munmap(base, bytes);
  if (fd >= 0) ::close(fd);
}

namespace shared_heap {
namespace {

constexpr std::size_t huge_from = std::size_t{2} << 20;

struct Heap {
  std::shared_mutex mutex;
  std::shared_ptr<SharedMemory> directory;
  struct Array {
    std::shared_ptr<SharedMemory> memory;
    std::uint32_t entry;
  };
  std::map<std::uintptr_t, Array> arrays;  // by address
  std::vector<std::uint32_t> free_entries;
  std::uint32_t next_entry = 0;
  std::atomic<std::size_t> live{0};

  Directory& table() {
    if (!directory) directory = SharedMemory::make(sizeof(Directory), false);
    return *reinterpret_cast<Directory*>(directory->base);
  }
};

Heap* heap = nullptr;

// A forked child shares its parent's arrays but must not answer for them: it begins with an empty heap, and
// what it inherited stays mapped as ordinary memory.
Heap& the_heap() {
  static std::once_flag once;
  std::call_once(once, [] {
    heap = new Heap();
    pthread_atfork(nullptr, nullptr, [] { heap = new Heap(); });
  });
  return *heap;
}

}  // namespace

void* allocate(std::size_t bytes) {
  Heap& h = the_heap();
  auto memory = SharedMemory::make(bytes ? bytes : 1, bytes >= huge_from);
  std::unique_lock lock(h.mutex);
  Directory& table = h.table();
  std::uint32_t entry = h.next_entry;
  if (!h.free_entries.empty()) {
    entry = h.free_entries.back();
    h.free_entries.pop_back();
  } else if (entry < Directory::entries) {
    ++h.next_entry;
  } else {
    throw Error("more than " + std::to_string(Directory::entries) + " arrays in shared memory at once");
  }
  table.entry[entry].fd = memory->fd;
  table.entry[entry].bytes = memory->bytes;
  table.entry[entry].generation.fetch_add(1, std::memory_order_release);
  void* where = memory->base;
  h.arrays[reinterpret_cast<std::uintptr_t>(where)] = {std::move(memory), entry};
  h.live.store(h.arrays.size(), std::memory_order_release);
  return where;
}

void free(void* memory) {
  Heap& h = the_heap();
  std::unique_lock lock(h.mutex);
  const auto found = h.arrays.find(reinterpret_cast<std::uintptr_t>(memory));
  if (found == h.arrays.end()) return;  // allocated before a fork: it is the parent's
  const Heap::Array array = found->second;
  // Peers may keep their mapping for long; the pages must not stay with it.
  fallocate(array.memory->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(array.memory->bytes));
  h.table().entry[array.entry].generation.fetch_add(1, std::memory_order_release);
  h.free_entries.push_back(array.entry);
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
  if (address + bytes > start + array.memory->bytes) return std::nullopt;
  return Location{array.entry, address - start};
}

int directory_fd() {
  Heap& h = the_heap();
  std::unique_lock lock(h.mutex);
  h.table();
  return h.directory->fd;
}

}  // namespace shared_heap

PeerHeap::PeerHeap(pid_t pid, int directory_fd)
    : pid_(pid),
      directory_(SharedMemory::open(pid, directory_fd, sizeof(Directory))),
      mapped_(Directory::entries) {}

std::byte* PeerHeap::resolve(Location place) {
  const auto& entry = reinterpret_cast<Directory*>(directory_->base)->entry[place.region % Directory::entries];
  const std::uint32_t generation = entry.generation.load(std::memory_order_acquire);
  std::lock_guard lock(mutex_);
  Mapping& mapping = mapped_[place.region % Directory::entries];
  if (!mapping.memory || mapping.generation != generation) {
    mapping.memory = SharedMemory::open(pid_, entry.fd, entry.bytes);
    mapping.generation = generation;
  }
  return mapping.memory->base + place.offset;
}

}  // namespace ringreduce

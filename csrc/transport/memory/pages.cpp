#include "transport/memory/pages.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace ringreduce {
namespace {

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1
#endif

// dlopen would look for a driver that is not loaded in all the system's folders, which takes longer than
// moving a small block.
bool has_loaded_driver() {
  const auto is_driver = [](dl_phdr_info* library, std::size_t, void*) {
    return static_cast<int>(std::strstr(library->dlpi_name, "libcuda.so") != nullptr);
  };
  return dl_iterate_phdr(is_driver, nullptr) != 0;
}

}  // namespace

void* reserve_addresses(std::size_t bytes, std::size_t place) {
  const std::size_t whole = (bytes + page - 1) / page * page;
  const std::size_t reserved = whole + huge_page;
  void* const room = mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) throw std::bad_alloc();
  const auto first = reinterpret_cast<std::uintptr_t>(room);
  const std::uintptr_t start = first + (huge_page + place - first % huge_page) % huge_page;
  const std::uintptr_t end = start + whole;
  if (start > first) munmap(room, start - first);
  if (end < first + reserved) munmap(reinterpret_cast<void*>(end), first + reserved - end);
  return reinterpret_cast<void*>(start);
}

Descriptor make_memory_file(std::size_t bytes, const char* name) {
  rlimit limit{};
  // Exceeding the limit raises a signal that ends the process.
  getrlimit(RLIMIT_FSIZE, &limit);
  if (bytes > limit.rlim_cur) {
    throw NoSharedMemory(
        bytes, "files are limited to " + std::to_string(limit.rlim_cur) + " bytes (RLIMIT_FSIZE, ulimit -f)");
  }
  Descriptor file(memfd_create(name, MFD_CLOEXEC));
  const int fd = file.get();
  const bool refused = fd < 0 && (errno == EPERM || errno == EACCES || errno == ENOSYS);
  if (!refused && (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0)) {
    throw NoSharedMemory(bytes, std::strerror(errno));
  }
  fchmod(fd, 0600);  // only this user may open it, even with a path to it
  return file;
}

// Most systems give shared memory huge pages only if a process asks for them page by page. A page must exist
// to be collapsed, so each is read. Refusal costs only speed.
void take_huge_pages(void* memory, std::size_t bytes) {
  madvise(memory, bytes, MADV_HUGEPAGE);
  const auto first = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t start = (first + huge_page - 1) / huge_page * huge_page;
  const std::uintptr_t end = (first + bytes) / huge_page * huge_page;
  if (start >= end) return;
  for (std::uintptr_t at = start; at < end; at += huge_page) {
    static_cast<void>(*reinterpret_cast<volatile const std::byte*>(at));
  }
  madvise(reinterpret_cast<void*>(start), end - start, MADV_COLLAPSE);
}

bool has_pinned_pages() {
  const Descriptor file(open("/proc/self/status", O_RDONLY | O_CLOEXEC));
  char text[4096];
  const ssize_t length = read(file.get(), text, sizeof text - 1);
  if (length <= 0) return true;
  text[length] = 0;
  for (const char* name : {"\nVmLck:", "\nVmPin:"}) {
    const char* const at = std::strstr(text, name);
    if (at && std::strtoull(at + std::strlen(name), nullptr, 10) > 0) return true;
  }
  return false;
}

// The driver is asked only if the program has loaded it. It fails for memory that it does not know.
bool is_registered(const void* memory) {
  using Ask = int (*)(void* answer, int attribute, std::uintptr_t pointer);
  constexpr int memory_type = 2;  // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
  void* const driver = has_loaded_driver() ? dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD) : nullptr;
  if (!driver) return false;
  const auto ask = reinterpret_cast<Ask>(dlsym(driver, "cuPointerGetAttribute"));
  unsigned type = 0;
  const bool known = ask && ask(&type, memory_type, reinterpret_cast<std::uintptr_t>(memory)) == 0;
  dlclose(driver);
  return known;
}

}  // namespace ringreduce

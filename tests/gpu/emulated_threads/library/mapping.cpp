#include "mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>

#include "gpu/device/cuda/file_passing.h"

namespace ringreduce::emulated {
namespace {

constexpr std::uint64_t mark = 0x656d756c61746564;

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

std::uint64_t inode_of(int file) {
  struct stat status{};
  if (fstat(file, &status) != 0) fail("shared memory");
  return status.st_ino;
}

}  // namespace

int make_file(std::size_t bytes) {
  const int file = memfd_create("emulated-gpu", MFD_CLOEXEC);
  if (file < 0) fail("memory");
  if (ftruncate(file, static_cast<off_t>(bytes)) == 0) return file;
  const int error = errno;
  close(file);
  errno = error;
  fail("memory");
}

void* reserve(std::size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fail("memory");
  return memory;
}

void* map_file(int file, std::size_t bytes, void* at) {
  void* const memory =
      mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (at != nullptr ? MAP_FIXED : 0), file, 0);
  if (memory != MAP_FAILED) return memory;
  const int error = errno;
  close(file);
  errno = error;
  fail("memory");
}

void unmap_file(void* memory, std::size_t bytes) {
  munmap(memory, bytes);
}

Shared shared_file(int file, std::size_t bytes, int device) {
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // lets any process take it, where systems forbid that
  return {mark, getpid(), file, inode_of(file), bytes, device, 0};
}

void* map_shared(const Shared& shared, void* at) {
  if (shared.mark != mark) throw std::invalid_argument("mapping shared memory: this is no handle of any");
  if (shared.process == getpid()) {
    throw std::invalid_argument("mapping shared memory: this process has made it");
  }
  const int file = device::take({shared.process, shared.file});
  if (inode_of(file) != shared.inode) {
    close(file);
    throw std::invalid_argument("mapping shared memory: it has been freed");
  }
  void* const memory = map_file(file, shared.bytes, at);
  close(file);
  return memory;
}

}  // namespace ringreduce::emulated

#include "gpu/device/cuda/file_passing.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "transport/interface/descriptor.h"

#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438  // Linux 5.6, on every architecture; Debian 11's headers lack it
#endif

namespace ringreduce::device {
namespace {

[[noreturn]] void fail(int error, const PassedFile& passed) {
  std::string what = "taking a file from process " + std::to_string(passed.process);
  if (error == EPERM)
    what += " (this process is not permitted to access it: see ptrace(2), /proc/sys/kernel/yama)";
  throw std::system_error(error, std::generic_category(), what);
}

}  // namespace

PassedFile passed(int file) {
  return {getpid(), file};
}

// Files like those of GPU memory have no name by which they could be opened again.
int take(const PassedFile& passed) {
  const auto process = static_cast<int>(syscall(SYS_pidfd_open, passed.process, 0));
  if (process < 0) fail(errno, passed);
  const auto file = above_standard(static_cast<int>(syscall(SYS_pidfd_getfd, process, passed.file, 0)));
  const int error = errno;
  close(process);
  if (file < 0) fail(error, passed);
  return file;
}

}  // namespace ringreduce::device

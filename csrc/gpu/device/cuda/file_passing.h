// Passes open files to another process of the same user and host.
#pragma once

#include <cstdint>

namespace ringreduce::device {

// The facts that the other process needs. The file stays open here until the other process has taken it.
struct PassedFile {
  std::int32_t process, file;
};

PassedFile passed(int file);
// The same file, opened here. Throws std::runtime_error with the system's reason.
int take(const PassedFile& passed);

}  // namespace ringreduce::device

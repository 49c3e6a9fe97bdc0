// Files that one process has open, for another one of the same user and host.
#pragma once

#include <cstdint>

namespace ringreduce::device {

// What the other process must know of it. It stays open where it is until the other one has taken it.
struct PassedFile {
  std::int32_t process, file;
};

PassedFile passed(int file);
// The same file, opened here. Throws std::runtime_error, which says what the system has said.
int take(const PassedFile& passed);

}  // namespace ringreduce::device

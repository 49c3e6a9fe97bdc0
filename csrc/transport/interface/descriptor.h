// A file descriptor that is closed with its owner.
#pragma once

#include <unistd.h>

#include <utility>

namespace ringreduce {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }
  void reset() { *this = Descriptor(); }

 private:
  int fd_ = -1;
};

}  // namespace ringreduce

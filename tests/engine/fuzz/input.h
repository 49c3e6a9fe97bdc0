// What a fuzzer gives a harness, read from front to back.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

namespace ringreduce::fuzz {

// It is over, in the middle of a wait.
struct Ended {};

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}

  bool empty() const { return left_ == 0; }
  // Up to so many bytes; returns how many there were.
  std::size_t read(void* to, std::size_t bytes) {
    const std::size_t here = std::min(bytes, left_);
    if (here > 0) std::memcpy(to, data_, here);
    data_ += here;
    left_ -= here;
    return here;
  }
  // With zeros for what is not there.
  template <class T>
  T take() {
    T value{};
    read(static_cast<void*>(&value), sizeof value);
    return value;
  }
  int below(int limit) { return take<std::uint8_t>() % limit; }
  std::string text(std::size_t bytes) {
    std::string all(std::min(bytes, left_), '\0');
    read(all.data(), all.size());
    return all;
  }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

}  // namespace ringreduce::fuzz

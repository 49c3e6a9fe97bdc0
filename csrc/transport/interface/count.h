// A number that one thread at a time counts up, and any thread may read.
#pragma once

#include <atomic>
#include <cstdint>

namespace ringreduce {

class Count {
 public:
  // Costs what it costs to add to a plain number.
  void add(std::uint64_t more) {
    value_.store(value_.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
  }
  operator std::uint64_t() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

// Calls of one kind, and the bytes of their arrays.
struct CallsAndBytes {
  Count calls, bytes;

  void add(std::uint64_t more) {
    calls.add(1);
    bytes.add(more);
  }
};

}  // namespace ringreduce

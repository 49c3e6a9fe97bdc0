#include "reduce/line_taker.h"

#include <algorithm>
#include <atomic>
#include <chrono>

namespace ringreduce {
namespace {

// Nanoseconds for a line. A written one takes half a one, another 1.5 to 4 from a near core and 30 from a far
// one.
constexpr double slow_take = 8, slow_take_near = 1.2;
constexpr std::size_t line_bytes = 64;
std::atomic<std::uint64_t> taken{0};

}  // namespace

std::uint64_t LineTaker::lines_taken() {
  return taken.load(std::memory_order_relaxed);
}

void LineTaker::take(const void* from, std::size_t bytes) {
#if defined(__x86_64__)
  auto* const first = const_cast<char*>(static_cast<const char*>(from));
  const auto before = std::chrono::steady_clock::now();
  for (std::size_t at = 0; at < bytes; at += line_bytes)
    asm volatile("orb $0, %0" : "+m"(first[at]) : : "memory");
  const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - before;
  const std::size_t lines = (bytes + line_bytes - 1) / line_bytes;
  taken.fetch_add(lines, std::memory_order_relaxed);
  lines_ += lines;
  took_ += took.count();
#else
  static_cast<void>(from), static_cast<void>(bytes);
#endif
}

void LineTaker::judge() {
  constexpr int most_in_a_row = 5;  // then 30 messages are left out
  const bool slow = took_ > (near_ ? slow_take_near : slow_take) * static_cast<double>(lines_);
  slow_in_a_row_ = slow ? std::min(slow_in_a_row_ + 1, most_in_a_row) : 0;
  left_out_ = (1 << slow_in_a_row_) - 1;
  lines_ = 0;
  took_ = 0;
}

}  // namespace ringreduce

// How a thread lets time pass.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace ringreduce {

// A wait of at most this length may spin.
constexpr std::chrono::milliseconds brief_wait{1};

// A hint to the core that this is a spinning loop.
inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Sleeps until `word` is woken, no longer holds `expected`, or the timeout passes.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::chrono::microseconds limit);
void futex_wake(std::atomic<std::uint32_t>& word);

}  // namespace ringreduce

// The primitives of device code, for tests compiled by a C++ compiler: threads run one after another, and an
// access that a GPU would refuse as misaligned throws.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>

#define RINGREDUCE_DEVICE inline
#define RINGREDUCE_ANYWHERE
#define RINGREDUCE_APART inline
#define RINGREDUCE_UNROLL
#define RINGREDUCE_NO_UNROLL

namespace ringreduce::device {

struct alignas(16) Words {
  std::uint32_t at[4];
};

template <class T>
void check_alignment(const char* address) {
  if (reinterpret_cast<std::uintptr_t>(address) % alignof(T) != 0) {
    throw std::logic_error("misaligned access of " + std::to_string(sizeof(T)) + " bytes");
  }
}

template <class T>
T load_aligned(const char* from) {
  check_alignment<T>(from);
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <class T>
void store_aligned(char* to, const T& value) {
  check_alignment<T>(to);
  std::memcpy(to, &value, sizeof value);
}

inline constexpr int warp_lanes = 32;

template <class T>
struct PerLane {
  T value[warp_lanes];
  T& operator[](int lane) { return value[lane]; }
};

template <class Body>
void on_lanes(Body body) {
  for (int lane = 0; lane < warp_lanes; ++lane) body(lane);
}

inline std::uint32_t largest_of_lanes(const PerLane<std::uint32_t>& number) {
  std::uint32_t largest = 0;
  for (const std::uint32_t one : number.value) largest = one > largest ? one : largest;
  return largest;
}

inline bool is_first_of_lanes_here() {
  return true;
}

// For tests: what this thread has done, w for words, h for one to the host, and f for a release fence, which
// would wait for them.
inline thread_local std::string order_of_words;

// The exchange is for the thread sanitizer, which does not see fences and so reports missing ones.
inline void fence() {
  static std::uint64_t all_threads = 0;
  __atomic_thread_fence(__ATOMIC_ACQ_REL);
  __atomic_fetch_add(&all_threads, 1, __ATOMIC_ACQ_REL);
}
inline void acquire_fence() {
  fence();
}
inline void release_fence() {
  order_of_words += 'f';
  fence();
}
inline std::uint64_t load_relaxed(const std::uint64_t* from) {
  return __atomic_load_n(from, __ATOMIC_RELAXED);
}
inline void store_relaxed(std::uint64_t* to, std::uint64_t value) {
  if (!order_of_words.ends_with('w')) order_of_words += 'w';
  __atomic_store_n(to, value, __ATOMIC_RELAXED);
}
inline void tell_host(std::uint64_t* word, std::uint64_t value) {
  order_of_words += 'h';
  __atomic_store_n(word, value, __ATOMIC_RELAXED);
}
inline std::uint64_t exchange(std::uint64_t* at, std::uint64_t value) {
  return __atomic_exchange_n(at, value, __ATOMIC_RELAXED);
}
inline void store_flagged(char* to, std::uint64_t data, std::uint32_t flag) {
  check_alignment<Words>(to);
  auto* const halves = reinterpret_cast<std::uint64_t*>(to);
  const std::uint64_t flagged = static_cast<std::uint64_t>(flag) << 32;
  store_relaxed(halves, flagged | (data & 0xffffffffu));
  store_relaxed(halves + 1, flagged | data >> 32);
}
inline bool load_flagged(const char* from, std::uint32_t flag, std::uint64_t& data) {
  check_alignment<Words>(from);
  const auto* const halves = reinterpret_cast<const std::uint64_t*>(from);
  const std::uint64_t low = load_relaxed(halves), high = load_relaxed(halves + 1);
  data = high << 32 | (low & 0xffffffffu);
  return low >> 32 == flag && high >> 32 == flag;
}
inline void wait_a_little() {
  std::this_thread::yield();
}
inline void wait_long() {
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

// A thread block, whose threads run as one thread of the CPU.
class Block {
 public:
  Block(int index, int count, std::size_t threads) : index_(index), count_(count), threads_(threads) {}
  int index() const { return index_; }
  int count() const { return count_; }
  template <class Body>
  void alone(Body body) {
    body();
  }
  void meet() {}
  template <class Body>
  bool leader(Body body) {
    return body();
  }
  template <class Body>
  void all(Body body) {
    for (std::size_t thread = 0; thread < threads_; ++thread) body(thread, threads_);
  }
  // Each of these threads stands for a warp.
  template <class Body>
  void warps(Body body) {
    all(body);
  }
  template <class Body>
  bool every(Body body) {
    bool holds = true;
    for (std::size_t thread = 0; thread < threads_; ++thread) holds = body(thread, threads_) && holds;
    return holds;
  }

 private:
  const int index_, count_;
  const std::size_t threads_;
};

}  // namespace ringreduce::device

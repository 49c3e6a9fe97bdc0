// The primitives of device code, for nvcc. ../emulated/device.h has the same for a C++ compiler; the build
// file chooses between them by folder.
#pragma once

#include <cstddef>
#include <cstdint>

#define RINGREDUCE_DEVICE __device__ __forceinline__
// Precedes a template that calls its argument, for the host or the device, wherever it is called itself.
#define RINGREDUCE_ANYWHERE _Pragma("nv_exec_check_disable")
#define RINGREDUCE_APART inline __device__ __noinline__
#define RINGREDUCE_UNROLL _Pragma("unroll")
#define RINGREDUCE_NO_UNROLL _Pragma("unroll 1")

namespace ringreduce::device {

// The memory system's widest register: 16 bytes, moved by one instruction.
struct alignas(16) Words {
  std::uint32_t at[4];
};

// `from` has T's alignment.
template <class T>
RINGREDUCE_DEVICE T load_aligned(const char* from) {
  return *reinterpret_cast<const T*>(from);
}
template <class T>
RINGREDUCE_DEVICE void store_aligned(char* to, const T& value) {
  *reinterpret_cast<T*>(to) = value;
}
template <>
RINGREDUCE_DEVICE Words load_aligned<Words>(const char* from) {
  const uint4 words = *reinterpret_cast<const uint4*>(from);
  return {{words.x, words.y, words.z, words.w}};
}
template <>
RINGREDUCE_DEVICE void store_aligned<Words>(char* to, const Words& words) {
  *reinterpret_cast<uint4*>(to) = make_uint4(words.at[0], words.at[1], words.at[2], words.at[3]);
}

// A warp: its lanes run `on_lanes` side by side, each with its own T, and agree on the largest.
inline constexpr int warp_lanes = 32;

template <class T>
struct PerLane {
  T value;
  RINGREDUCE_DEVICE T& operator[](int) { return value; }
};

template <class Body>
RINGREDUCE_DEVICE void on_lanes(Body body) {
  body(static_cast<int>(threadIdx.x) % warp_lanes);
}

RINGREDUCE_DEVICE std::uint32_t largest_of_lanes(PerLane<std::uint32_t> number) {
  std::uint32_t largest = number.value;
  RINGREDUCE_UNROLL
  for (int far = warp_lanes / 2; far > 0; far /= 2) {
    const std::uint32_t other = __shfl_xor_sync(0xffffffffu, largest, far);
    largest = other > largest ? other : largest;
  }
  return largest;
}

// Whether no lane of the warp before this one runs the same code now.
RINGREDUCE_DEVICE bool is_first_of_lanes_here() {
  return (__activemask() & ((1u << threadIdx.x % warp_lanes) - 1)) == 0;
}

// Orders data for other blocks and GPUs before the words that announce it, and their words before the data
// that these announce. A thread that loads a word which this thread stores after a release fence, and then
// has an acquire fence, sees everything that this thread, and those it has met before, wrote earlier. One
// fence serves many words. On an H100, one that releases takes 0.8 us, and one that only acquires next to
// nothing.
#if __CUDA_ARCH__ >= 900 && 100 * __CUDACC_VER_MAJOR__ + __CUDACC_VER_MINOR__ >= 1208
#define RINGREDUCE_FENCE(order) asm volatile("fence." order ".sys;" ::: "memory")
#else  // has no weaker one
#define RINGREDUCE_FENCE(order) asm volatile("fence.acq_rel.sys;" ::: "memory")
#endif
RINGREDUCE_DEVICE void release_fence() {
  RINGREDUCE_FENCE("release");
}
RINGREDUCE_DEVICE void acquire_fence() {
  RINGREDUCE_FENCE("acquire");
}
// A single word, whole.
RINGREDUCE_DEVICE std::uint64_t load_relaxed(const std::uint64_t* from) {
  std::uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}
RINGREDUCE_DEVICE void store_relaxed(std::uint64_t* to, std::uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
// A word in the host's memory. A release fence that follows waits until it has arrived there.
RINGREDUCE_DEVICE void tell_host(std::uint64_t* word, std::uint64_t value) {
  store_relaxed(word, value);
}
// Within a GPU.
RINGREDUCE_DEVICE std::uint64_t exchange(std::uint64_t* at, std::uint64_t value) {
  return atomicExch(reinterpret_cast<unsigned long long*>(at), value);
}
// Eight bytes and a flag, in 16 aligned bytes: each half contains the flag, and is written whole. (Of four
// words, each would be.)
RINGREDUCE_DEVICE void store_flagged(char* to, std::uint64_t data, std::uint32_t flag) {
  const std::uint64_t flagged = static_cast<std::uint64_t>(flag) << 32;
  asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(flagged | (data & 0xffffffffu)),
               "l"(flagged | data >> 32)
               : "memory");
}
// Whether they have arrived.
RINGREDUCE_DEVICE bool load_flagged(const char* from, std::uint32_t flag, std::uint64_t& data) {
  std::uint64_t low, high;
  asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "l"(from) : "memory");
  data = high << 32 | (low & 0xffffffffu);
  return low >> 32 == flag && high >> 32 == flag;
}
RINGREDUCE_DEVICE void wait_a_little() {
  __nanosleep(32);
}
// Some milliseconds.
RINGREDUCE_DEVICE void wait_long() {
  for (int i = 0; i < 10; ++i) __nanosleep(1000000);
}

// A thread block.
class Block {
 public:
  RINGREDUCE_DEVICE int index() const { return static_cast<int>(blockIdx.x); }
  RINGREDUCE_DEVICE int count() const { return static_cast<int>(gridDim.x); }
  // One thread runs this, and no thread waits for it.
  template <class Body>
  RINGREDUCE_DEVICE void alone(Body body) {
    if (threadIdx.x == 0) body();
  }
  RINGREDUCE_DEVICE void meet() { __syncthreads(); }
  // One thread runs this, as soon as it comes. All get its result, and meet after.
  template <class Body>
  RINGREDUCE_DEVICE bool leader(Body body) {
    return __syncthreads_and(threadIdx.x != 0 || body()) != 0;
  }
  // All threads run this, and then meet.
  template <class Body>
  RINGREDUCE_DEVICE void all(Body body) {
    body(threadIdx.x, blockDim.x);
    __syncthreads();
  }
  // The same for warps: all lanes of each run this.
  template <class Body>
  RINGREDUCE_DEVICE void warps(Body body) {
    body(threadIdx.x / warp_lanes, blockDim.x / warp_lanes);
    __syncthreads();
  }
  // As all(); returns whether all of them return true.
  template <class Body>
  RINGREDUCE_DEVICE bool every(Body body) {
    return __syncthreads_and(body(threadIdx.x, blockDim.x)) != 0;
  }
};

}  // namespace ringreduce::device

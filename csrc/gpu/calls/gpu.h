// The objects that a rank owns on its GPU.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "gpu/runner/runner.h"

namespace ringreduce {

// Handles of default streams. Null is the same as cudaStreamLegacy; cudaStreamPerThread is another stream in
// each thread.
inline void* without_alias(void* stream) {
  return reinterpret_cast<std::uintptr_t>(stream) == 1 ? nullptr : stream;
}
inline bool is_per_thread(void* stream) {
  return reinterpret_cast<std::uintptr_t>(stream) == 2;
}

// Counts itself, as long as it lives.
class Counted {
 public:
  explicit Counted(std::atomic<int>& number) : number_(number) { ++number_; }
  ~Counted() { --number_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  std::atomic<int>& number_;
};

struct Gpu {
  Gpu(int number, int priority) : device(number), stream(new_stream(CudaLibrary::get(), number, priority)) {}

  // Throws InvalidArgument for an array that is on another one.
  void check_is(int device_of_array) const;
  // Replays of the graph that the stream is captured into use the runners' memory even after the group is
  // closed: they begin, and then give up.
  void hold_in_graph(void* captured) const;
  // Destroys the remains of a group (may be null) and earlier remains, as soon as no graph holds them.
  static void give_back(std::shared_ptr<Gpu> left);

  const int device;
  const CudaHandle stream;                         // not ordered with others
  std::array<std::unique_ptr<Runner>, 3> runners;  // by path
  // The last launch, except in graphs.
  void* last_event = nullptr;
  void* last_stream = nullptr;

 private:
  using Held = std::shared_ptr<char>;
  const Held held_ = std::make_shared<char>();
};

}  // namespace ringreduce

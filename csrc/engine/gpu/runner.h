// What runs collectives of arrays in GPU memory, as who looks after it sees it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

#include "engine/undestroyed.h"

namespace ringreduce {

class GpuCalls {
 public:
  virtual ~GpuCalls() = default;
  // Calls that the GPU has begun and ended, as it was last heard of.
  virtual std::uint64_t begun() = 0;
  virtual std::uint64_t ended() = 0;
  // Whether all that was launched is over.
  virtual bool is_idle() = 0;
  // What waits for peers ends, now and from now on.
  virtual void give_up() = 0;
};

// A thread that looks after something, again and again.
class Watch {
 public:
  explicit Watch(std::function<void()> look);
  // Returns when the last look is over.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  bool goes_on() const { return goes_on_; }
  // In the child of a fork there is no such thread.
  void disown() { thread_.detach(); }

 private:
  void run();

  const std::function<void()> look_;
  std::mutex mutex_;
  Undestroyed<std::condition_variable> ends_;
  std::atomic<bool> goes_on_{true};
  std::thread thread_;
};

}  // namespace ringreduce

// A thread that looks after something, again and again.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

#include "engine/undestroyed.h"

namespace ringreduce {

class Watch {
 public:
  explicit Watch(std::function<void()> look);
  // Returns when the last look is over.
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

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

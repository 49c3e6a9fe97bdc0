// A thread that repeats an action.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "engine/calls/undestroyed.h"
#include "transport/interface/thread.h"
#include "transport/interface/transport.h"

namespace ringreduce {

class Repeating {
 public:
  Repeating(Clock::duration every, std::function<void()> what)
      : every_(every), what_(std::move(what)), thread_(thread_without_signals([this] { run(); })) {}
  // Returns after the last time.
  ~Repeating() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      goes_on_ = false;
      ends_->notify_all();
    }
    thread_.join();
  }
  Repeating(const Repeating&) = delete;
  Repeating& operator=(const Repeating&) = delete;

  // The child of a fork does not have the thread.
  void disown() { abandon(thread_); }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (goes_on_) {
      lock.unlock();
      what_();
      lock.lock();
      if (goes_on_) ends_->wait_for(lock, every_);
    }
  }

  const Clock::duration every_;
  const std::function<void()> what_;
  std::mutex mutex_;
  Undestroyed<std::condition_variable> ends_;
  bool goes_on_ = true;
  std::thread thread_;
};

}  // namespace ringreduce

// A stream: a thread that does what is put into the queue, one after the other. What fails is told to who
// synchronizes next.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "capture.h"

namespace ringreduce::emulated {

class Stream {
 public:
  // What is put into the legacy default stream waits for all that the device's blocking streams have in their
  // queues, and what is put into those later waits for it. Others do not take part.
  enum class Kind { legacy, blocking, non_blocking };
  static std::shared_ptr<Stream> create(int device, Kind kind);

  int device() const { return device_; }
  Kind kind() const { return kind_; }
  // Into the queue or, if it is captured, into the graph.
  void put(Work work);
  // Waits for all that is in the queue now.
  void finish() { finish(last()); }
  // Throws std::runtime_error with what has failed since the last time.
  void synchronize();
  // The thread ends when the queue is empty.
  void close();

 private:
  Stream(int device, Kind kind) : device_(device), kind_(kind) {}
  void work();
  // The number of the latest work in the queue.
  std::uint64_t last();
  void finish(std::uint64_t number);
  Work after_default_streams(Work work) const;

  const int device_;
  const Kind kind_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> queue_;
  std::uint64_t put_ = 0, done_ = 0;
  bool is_closed_ = false;
  std::string failure_;
};

// Null, or 1, is the current device's default stream; 2 is the calling thread's own. Throws
// std::invalid_argument if there is none.
std::shared_ptr<Stream> stream_at(void* handle);
// The same, where something is launched: the stream must be the current device's.
std::shared_ptr<Stream> stream_for_launch(void* handle);
// Waits for all that the device's streams have in their queues now.
void finish_device(int device);

}  // namespace ringreduce::emulated

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
  static std::shared_ptr<Stream> create(int device);

  int device() const { return device_; }
  // Into the queue or, if it is captured, into the graph.
  void put(Work work);
  // Waits for all that is in the queue now.
  void finish();
  // Throws std::runtime_error with what has failed since the last time.
  void synchronize();
  // The thread ends when the queue is empty.
  void close();

 private:
  explicit Stream(int device) : device_(device) {}
  void work();

  const int device_;
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

// Messages between two ranks, beside the collectives: one lane of the transport, a queue per peer and
// direction, moved on by whichever thread waits.
#pragma once

#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "engine/executor.h"

namespace ringreduce {

struct Transfer {
  bool sends = true;
  int peer = 0;
  const void* input = nullptr;  // of a send
  void* output = nullptr;       // of a receive
  std::size_t count = 0;        // elements
  DType dtype = DType::float32;
  int tag = 0;                // must be equal at both ends
  Clock::duration timeout{};  // zero: the communicator's
};

std::string in_words(const Transfer& transfer, int rank);

class PointToPoint {
 public:
  explicit PointToPoint(Transport& transport);

  // One transfer in its queue.
  struct Job {
    Transfer transfer;
    Geometry geometry;
    Layout full, last_slice;
    std::unique_ptr<Executor> executor;
    bool started = false;
    bool done = false;
    std::exception_ptr problem;
  };
  std::shared_ptr<Job> enqueue(const Transfer& transfer);
  // Moves the first job of every queue; true if any moved.
  bool advance();
  bool done(const Job& job);
  // Ends every job with this problem.
  void drop(std::exception_ptr problem);

 private:
  struct Queue {
    std::deque<std::shared_ptr<Job>> jobs;
    std::unique_ptr<Program> program;
  };
  Queue& queue(bool sends, int peer) { return queues_[peer * 2 + (sends ? 1 : 0)]; }
  void start(Queue& queue, Job& job);
  bool advance(Queue& queue);

  Transport& transport_;
  std::mutex mutex_;
  std::vector<Queue> queues_;
  std::vector<std::unique_ptr<Executor>> idle_;
  int waiting_ = 0;  // jobs in all queues
};

}  // namespace ringreduce

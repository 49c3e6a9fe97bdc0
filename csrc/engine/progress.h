// In which order collectives run, and where: in their callers' threads, or one behind the other in a thread
// of the group's own, which moves on point-to-point transfers beside them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/calls.h"
#include "engine/undestroyed.h"
#include "engine/work.h"

namespace ringreduce {

class Progress {
 public:
  explicit Progress(Calls& calls) : calls_(calls) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Returns when it is complete. In this thread, or, if submitted calls are under way, behind them.
  void run(const Call& call);
  void run(Steps& steps);

  std::shared_ptr<Work> submit(const Call& call);
  std::shared_ptr<Work> submit(std::shared_ptr<Steps> steps);
  std::shared_ptr<Work> submit(const Transfer& transfer);

  // There is something for the thread to move on that nobody submitted.
  void wake();
  // Whether all that was submitted is over.
  bool is_idle();
  // Ends what was submitted with Closed; nothing is taken any more.
  void stop();
  // In the child of a fork there is no such thread.
  void disown() {
    if (thread_.joinable()) thread_.detach();
  }

 private:
  struct PendingCollective {
    std::shared_ptr<Steps> steps;
    std::shared_ptr<Work> work;
    Call call;  // the one under way
    bool begun = false;
    Clock::time_point started;
  };
  struct PendingMessage {
    RequestPointer request;
    std::shared_ptr<Work> work;
    Clock::time_point submitted;

    bool is_over() const { return request->done.load(std::memory_order_acquire); }
    void finish() const;
  };

  void run_behind(std::shared_ptr<Steps> steps);
  template <typename Push>
  void hand_over(Push push);

  void work();
  bool wait_for_something();
  // Whether messages have been taken over that nobody waits for, and are not gone yet.
  bool to_be_flushed() const { return !calls_.is_over() && !calls_.flushed(); }
  bool advance_collective();
  bool begin_next();
  void begin_call();
  bool advance_messages();
  void pause(Backoff& backoff);
  void check_messages();
  void finish_collective(const std::exception_ptr& problem);
  void drop(const std::exception_ptr& problem);

  Calls& calls_;
  std::mutex mutex_;  // guards what follows
  Undestroyed<std::condition_variable> changed_;
  std::deque<PendingCollective> queue_;
  std::deque<PendingMessage> messages_;
  bool stopping_ = false;
  std::thread thread_;

  PendingCollective current_;    // of the thread; none where it has no work
  std::atomic<int> pending_{0};  // collectives submitted and not over
};

}  // namespace ringreduce

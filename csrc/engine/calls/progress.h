// Decides where and in which order collectives run: in their callers' threads, or one after the other in a
// thread of the group, which also moves point-to-point transfers on.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/calls/calls.h"
#include "engine/calls/undestroyed.h"
#include "engine/calls/work.h"
#include "transport/interface/thread.h"

namespace ringreduce {

// Called once, before a call waits for other ranks or threads.
class BeforeWaiting {
 public:
  virtual void operator()() = 0;

 protected:
  ~BeforeWaiting() = default;
};

class Progress {
 public:
  explicit Progress(Calls& calls) : calls_(calls) {}
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Runs a call in this thread, or after submitted calls if any are running. Returns when it is complete.
  void run(const Call& call);
  // The same. Calls `before` first, or, if the call is small, once it has looked for the peers' messages for
  // a moment and they were not all there.
  void run(const Call& call, BeforeWaiting& before);
  void run(Steps& steps);

  std::shared_ptr<Work> submit(const Call& call, Arrays arrays);
  std::shared_ptr<Work> submit(std::shared_ptr<Steps> steps);
  std::shared_ptr<Work> submit(const Transfer& transfer, Arrays arrays);

  // Wakes the thread for work that no caller submitted. Without a thread, the next call moves it on.
  void wake();
  // Whether all submitted calls have finished.
  bool is_idle();
  // Ends submitted calls with Closed, and accepts no more.
  void stop();
  // The child of a fork does not have the thread.
  void disown() { abandon(thread_); }

 private:
  struct PendingCollective {
    std::shared_ptr<Steps> steps;
    std::shared_ptr<Work> work;
    Call call;  // the current one
    bool begun = false;
    Clock::time_point started;

    void finish(const std::exception_ptr& problem);
  };
  struct PendingMessage {
    RequestPointer request;
    std::shared_ptr<Work> work;
    Clock::time_point submitted;

    bool is_over() const { return request->done.load(std::memory_order_acquire); }
    void finish() const;
  };

  void run_behind(const char* what, std::shared_ptr<Steps> steps);
  // Throws if there can be no thread, before anything has begun, or if none may begin any more.
  void start_thread();
  template <typename Push>
  void hand_over(Push push);

  void work();
  bool wait_for_something(TimedWaits& timed);
  // Whether accepted messages that nobody waits for still have to be sent.
  bool to_be_flushed() const { return !calls_.is_over() && !calls_.flushed(); }
  bool advance_collective(TimedWaits& timed);
  bool begin_next();
  void begin_call();
  bool advance_messages();
  void pause(Backoff& backoff, TimedWaits& timed);
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

  PendingCollective current_;    // of the thread; none if it has no work
  std::atomic<int> pending_{0};  // submitted collectives that have not finished
};

}  // namespace ringreduce

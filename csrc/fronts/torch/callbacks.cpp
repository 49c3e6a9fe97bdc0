#include "fronts/torch/callbacks.h"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

#include "fronts/torch/gil.h"

namespace ringreduce::torch_backend {
namespace {

constexpr auto idle_for = std::chrono::seconds(10);  // after which a thread ends
constexpr auto tick_every = std::chrono::milliseconds(20);
constexpr auto silent_for = std::chrono::seconds(10);

// There is always a thread for the next callback; those that block do not count.
class Threads {
 public:
  void post(std::function<void()> what) {
    std::unique_lock lock(mutex_);
    const bool lacks_a_thread = !over_ && static_cast<int>(waiting_.size()) >= idle_;
    if (lacks_a_thread && !add_thread() && idle_ + busy_ == 0) {
      lock.unlock();
      return what();  // in this thread, because there can be no other
    }
    waiting_.push_back(std::move(what));
    changed_.notify_one();
  }

  void finish(const std::function<void()>& tick) {
    const auto begin = std::chrono::steady_clock::now();
    bool said = false;
    std::unique_lock lock(mutex_);
    while (!quiet_.wait_for(lock, tick_every, [this] { return waiting_.empty() && busy_ == 0; })) {
      lock.unlock();
      tick();
      if (!said && std::chrono::steady_clock::now() - begin > silent_for) {
        said = true;
        TORCH_WARN("ringreduce: the program ends when the callbacks of its futures have returned");
      }
      lock.lock();
    }
    over_ = true;
  }

 private:
  // If no more threads can start, waiting callbacks run in a thread that blocks now.
  bool add_thread() {
    try {
      std::thread([this] { serve(); }).detach();
      ++idle_;
      return true;
    } catch (const std::system_error&) {
      return false;
    }
  }

  void serve() {
    awaited_at_end = true;
    std::unique_lock lock(mutex_);
    while (changed_.wait_for(lock, idle_for, [this] { return !waiting_.empty(); })) {
      if (over_) return;
      auto next = std::move(waiting_.front());
      waiting_.pop_front();
      --idle_;
      ++busy_;
      lock.unlock();
      next();
      next = nullptr;  // which may take the GIL
      lock.lock();
      ++idle_;
      --busy_;
      quiet_.notify_all();
    }
    --idle_;
  }

  std::mutex mutex_;
  std::condition_variable changed_, quiet_;
  std::deque<std::function<void()>> waiting_;
  int idle_ = 0;
  int busy_ = 0;
  bool over_ = false;
};

Threads* threads = nullptr;

// Never destroyed, because its threads may outlive static objects. A forked child has none of the threads.
Threads& the_threads() {
  static std::once_flag once;
  std::call_once(once, [] {
    threads = new Threads();
    pthread_atfork(nullptr, nullptr, [] { threads = new Threads(); });
  });
  return *threads;
}

}  // namespace

void call_back(std::function<void()> what) {
  the_threads().post(std::move(what));
}

void finish_callbacks(const std::function<void()>& tick) {
  the_threads().finish(tick);
}

}  // namespace ringreduce::torch_backend

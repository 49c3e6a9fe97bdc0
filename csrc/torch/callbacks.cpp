#include "torch/callbacks.h"

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>

namespace ringreduce::torch_backend {
namespace {

constexpr auto idle_for = std::chrono::seconds(10);  // after which a thread ends
constexpr auto needed_for = std::chrono::minutes(1);

struct Callback {
  std::function<void()> what;
  bool to_the_end;
};

// There is always a thread for the next callback; those that block do not count.
class Threads {
 public:
  void post(std::function<void()> what, bool to_the_end) {
    std::unique_lock lock(mutex_);
    if (static_cast<int>(waiting_.size()) >= idle_ && !add_thread() && idle_ + busy_ == 0) {
      lock.unlock();
      return what();  // in this thread, because there can be no other
    }
    waiting_.push_back({std::move(what), to_the_end});
    needed_ += to_the_end;
    changed_.notify_one();
  }

  void finish(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    quiet_.wait_for(lock, patience, [this] { return waiting_.empty() && busy_ == 0; });
    quiet_.wait_for(lock, needed_for, [this] { return needed_ == 0; });
  }

 private:
  // If there can be no more threads, what waits is for one that blocks now.
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
    std::unique_lock lock(mutex_);
    while (changed_.wait_for(lock, idle_for, [this] { return !waiting_.empty(); })) {
      const Callback next = std::move(waiting_.front());
      waiting_.pop_front();
      --idle_;
      ++busy_;
      lock.unlock();
      next.what();
      lock.lock();
      ++idle_;
      --busy_;
      needed_ -= next.to_the_end;
      quiet_.notify_all();
    }
    --idle_;
  }

  std::mutex mutex_;
  std::condition_variable changed_, quiet_;
  std::deque<Callback> waiting_;
  int idle_ = 0;
  int busy_ = 0;
  int needed_ = 0;  // that must finish
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

void call_back(std::function<void()> what, bool to_the_end) {
  the_threads().post(std::move(what), to_the_end);
}

void finish_callbacks(int milliseconds) {
  the_threads().finish(std::chrono::milliseconds(milliseconds));
}

}  // namespace ringreduce::torch_backend

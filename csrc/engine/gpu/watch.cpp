#include "engine/gpu/watch.h"

#include <utility>

namespace ringreduce {
namespace {

constexpr std::chrono::milliseconds every{20};

}  // namespace

Watch::Watch(std::function<void()> look) : look_(std::move(look)), thread_([this] { run(); }) {}

Watch::~Watch() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    goes_on_ = false;
    ends_->notify_all();
  }
  thread_.join();
}

void Watch::run() {
  std::unique_lock lock(mutex_);
  while (goes_on_) {
    lock.unlock();
    look_();
    lock.lock();
    if (goes_on_) ends_->wait_for(lock, every);
  }
}

}  // namespace ringreduce

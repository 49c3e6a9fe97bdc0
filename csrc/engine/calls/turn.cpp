#include "engine/calls/turn.h"

#include <utility>

namespace ringreduce {
namespace {

thread_local Turn* innermost = nullptr;  // of those that this thread holds

}  // namespace

bool Turn::taken(bool locked) {
  if (locked) outer_ = std::exchange(innermost, this);
  return locked;
}

void Turn::lock() {
  mutex_.lock();
  taken(true);
}

bool Turn::try_lock() {
  return taken(!is_held_here(this) && mutex_.try_lock());
}

bool Turn::try_lock_for(std::chrono::milliseconds limit) {
  return taken(mutex_.try_lock_for(limit));
}

void Turn::unlock() {
  innermost = outer_;
  mutex_.unlock();
}

bool Turn::is_held_here(const Turn* turn) {
  const Turn* held = innermost;
  while (held != turn && held) held = held->outer_;
  return held;
}

}  // namespace ringreduce

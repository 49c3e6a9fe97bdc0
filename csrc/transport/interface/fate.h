// The state of a group on one of its ranks: open, failed with its cause, or closed. Every wait of the rank,
// in any thread, consults it.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>

#include "transport/interface/errors.h"

namespace ringreduce {

class Fate {
 public:
  bool is_open() const { return state() == State::open; }
  bool has_failed() const { return state() == State::failed; }
  bool is_closed() const { return state() == State::closed; }
  // Throws Closed, or the group's Failure.
  void check() const {
    if (!is_open()) [[unlikely]]
      raise();
  }

  // Only the first failure counts; returns it.
  Failure fail(const Failure& failure) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = failure;
    State open = State::open;
    state_.compare_exchange_strong(open, State::failed, std::memory_order_acq_rel);
    return *failure_;
  }
  // False if it was closed before. A known failure stays known.
  bool close() { return state_.exchange(State::closed, std::memory_order_acq_rel) != State::closed; }
  std::optional<Failure> failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  enum class State : unsigned char { open, failed, closed };

  State state() const { return state_.load(std::memory_order_acquire); }
  [[noreturn]] void raise() const {
    if (is_closed()) throw Closed("the communicator is closed");
    throw *failure();
  }

  mutable std::mutex mutex_;
  std::optional<Failure> failure_;  // written once, before `failed`
  std::atomic<State> state_{State::open};
};

}  // namespace ringreduce

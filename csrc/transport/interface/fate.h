// How a group stands on one of its ranks: open, failed with its cause, or closed. The one answer to "is it
// over?" that every wait of the rank consults, in whatever thread.
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
  // Throws Closed, or the Failure that the group ended with.
  void check() const {
    if (!is_open()) [[unlikely]]
      raise();
  }

  // The first failure stays; returns the one that stands.
  Failure fail(const Failure& failure) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = failure;
    State open = State::open;
    state_.compare_exchange_strong(open, State::failed, std::memory_order_acq_rel);
    return *failure_;
  }
  // False if it was closed before. What is known of a failure stays known.
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

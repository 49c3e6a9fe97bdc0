#include "transport/interface/fate.h"

namespace ringreduce {

Failure Fate::fail(const Failure& failure) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = failure;
  State open = State::open;
  state_.compare_exchange_strong(open, State::failed, std::memory_order_acq_rel);
  return *failure_;
}

bool Fate::close() {
  const std::lock_guard lock(mutex_);
  return state_.exchange(State::closed, std::memory_order_acq_rel) != State::closed;
}

std::optional<Failure> Fate::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Fate::raise() const {
  if (is_closed()) throw Closed("the communicator is closed");
  throw *failure();
}

}  // namespace ringreduce

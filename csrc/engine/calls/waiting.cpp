#include "engine/calls/waiting.h"

#include <atomic>

namespace ringreduce {
namespace {

std::atomic<bool (*)()> interrupt_check{nullptr};

}  // namespace

InterruptCheck set_interrupt_check(InterruptCheck check) {
  return interrupt_check.exchange(check);
}

void check_interrupt() {
  auto* check = interrupt_check.load(std::memory_order_relaxed);
  if (check && check()) throw Interrupted("interrupted");
}

}  // namespace ringreduce

#include "engine/waiting.h"

#include <atomic>

namespace ringreduce {
namespace {

std::atomic<bool (*)()> interrupt_check{nullptr};

}  // namespace

void set_interrupt_check(bool (*check)()) {
  interrupt_check = check;
}

void check_interrupt() {
  auto* check = interrupt_check.load(std::memory_order_relaxed);
  if (check && check()) throw Interrupted("interrupted");
}

}  // namespace ringreduce

#include "torch/gil.h"

#include <unistd.h>

#include <atomic>

namespace ringreduce::torch_backend {
namespace {

std::atomic<bool> ending{false};

}  // namespace

void begin_ending() {
  ending = true;
}

void stay_if_ending() {
  if (!ending.load(std::memory_order_relaxed) || gettid() == getpid()) return;
  while (true) pause();
}

}  // namespace ringreduce::torch_backend

#include "residency.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

#include "devices.h"
#include "gpu/reduce/entry_points.h"

namespace ringreduce::emulated {

int blocks_that_fit() {
  return setting("RINGREDUCE_EMULATED_BLOCKS", 64);
}

Residency::Turn::Turn(Residency& of, int blocks) : of_(of) {
  std::unique_lock lock(of_.mutex_);
  of_.changed_.wait(lock, [this, mine = of_.next_turn_++] { return of_.turn_ == mine; });
  of_.largest_ = std::max(of_.largest_, blocks);
}

Residency::Turn::~Turn() {
  const std::lock_guard lock(of_.mutex_);
  ++of_.turn_;
  of_.changed_.notify_all();
}

void Residency::enter() {
  const int room = blocks_that_fit();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return blocks_ < room; });
  ++blocks_;
}

void Residency::leave() {
  const std::lock_guard lock(mutex_);
  --blocks_;
  changed_.notify_all();
}

bool Residency::is_busy() {
  const std::lock_guard lock(mutex_);
  return blocks_ > 0;
}

int Residency::take_largest() {
  const std::lock_guard lock(mutex_);
  return std::exchange(largest_, 0);
}

Residency& residency_of(int device) {
  // Never destroyed: streams' threads may outlive main.
  static auto* const mutex = new std::mutex;
  static auto* const by_device = new std::map<int, Residency>;
  const std::lock_guard lock(*mutex);
  return (*by_device)[device];
}

void refuse_beside_kernels(int device, const std::string& what) {
  if (!residency_of(device).is_busy()) return;
  throw std::runtime_error(what + " waits for the ranks' kernels that run on device " +
                           std::to_string(device));
}

}  // namespace ringreduce::emulated

RINGREDUCE_EXPORT int ringreduce_emulated_largest_kernel(int device) {
  return ringreduce::emulated::residency_of(device).take_largest();
}

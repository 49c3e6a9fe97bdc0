#include "fronts/python/held.h"

#include <atomic>
#include <memory>
#include <utility>

namespace ringreduce {
namespace {

struct Dropped {
  std::vector<nanobind::object> objects;
  Dropped* next = nullptr;
};

// A thread of the engine cannot wait for Python's lock: the holder may be waiting for that thread, or Python
// may have ended. What it drops waits here for the next call from Python.
std::atomic<Dropped*> dropped{nullptr};

void drop(Dropped* one) noexcept {
  one->next = dropped.load(std::memory_order_relaxed);
  while (!dropped.compare_exchange_weak(one->next, one, std::memory_order_release)) {
  }
}

}  // namespace

Arrays Held::give() {
  return {new Dropped{std::move(objects_)}, drop};
}

void let_go() {
  if (!dropped.load(std::memory_order_relaxed)) return;
  Dropped* next = dropped.exchange(nullptr, std::memory_order_acquire);
  while (next) {
    const std::unique_ptr<Dropped> one(next);
    next = one->next;
  }
}

}  // namespace ringreduce

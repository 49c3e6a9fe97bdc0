// torch's own bindings release the GIL around the backend's functions, and take it when these return.
#pragma once

#include <atomic>
#include <optional>

#include "fronts/shared/gil.h"

namespace ringreduce::torch_backend {

// Releases the GIL for a while, if this thread holds it.
class WithoutGilIfHeld {
 public:
  WithoutGilIfHeld() {
    if (Py_IsInitialized() && PyGILState_Check()) released_.emplace();
  }

 private:
  std::optional<WithoutGil> released_;
};

inline std::atomic<bool> ending{false};           // whether Python is ending
inline thread_local bool awaited_at_end = false;  // whether the end of Python waits for this thread

// Stands first in each function of the backend that waits. When Python is ending, its thread does not return
// to torch, which would take the GIL: see fronts/shared/thread_end.h.
class StaysAtEnd {
 public:
  StaysAtEnd() = default;
  ~StaysAtEnd() {
    if (!ending.load(std::memory_order_relaxed) || awaited_at_end || gettid() == getpid()) return;
    if (!(Py_IsInitialized() && PyGILState_Check())) stay();
  }
  StaysAtEnd(const StaysAtEnd&) = delete;
  StaysAtEnd& operator=(const StaysAtEnd&) = delete;
};

}  // namespace ringreduce::torch_backend

// Communicators that Python owns.
#pragma once

#include <memory>
#include <utility>

#include "engine/communicator/communicator.h"
#include "fronts/shared/gil.h"

namespace ringreduce {

// The last owner waits, without the GIL, for the communicator's thread, which may be in a function of Python
// that combines values. It may also be a thread of which Python knows nothing.
template <class End>
void unlocked_end(End end) {
  if (!Py_IsInitialized() || !PyGILState_GetThisThreadState()) return end();
  const WithGil locked;
  const WithoutGil unlocked;
  end();
}

inline std::shared_ptr<Communicator> shared(std::unique_ptr<Communicator> made) {
  return {made.release(), [](Communicator* one) { unlocked_end([one] { delete one; }); }};
}

// For std::allocate_shared(): communicator and count in one piece of memory, as before.
template <class T>
struct EndsUnlocked : std::allocator<T> {
  EndsUnlocked() = default;
  template <class U>
  explicit EndsUnlocked(const EndsUnlocked<U>&) {}
  template <class U>
  struct rebind {
    using other = EndsUnlocked<U>;
  };
  template <class U>
  void destroy(U* one) {
    unlocked_end([one] { std::destroy_at(one); });
  }
};

}  // namespace ringreduce

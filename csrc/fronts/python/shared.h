// Communicators that Python owns.
#pragma once

#include <memory>
#include <utility>

#include "engine/communicator/communicator.h"
#include "fronts/shared/gil.h"

namespace ringreduce {

// The last owner waits, without the GIL, for the communicator's thread, which may be in a function of Python
// that combines values. It may also be a thread of which Python knows nothing.
inline void free_unlocked(Communicator* communicator) {
  if (!Py_IsInitialized() || !PyGILState_GetThisThreadState()) {
    delete communicator;
    return;
  }
  const WithGil locked;
  const WithoutGil unlocked;
  delete communicator;
}

inline std::shared_ptr<Communicator> shared(std::unique_ptr<Communicator> made) {
  return {made.release(), free_unlocked};
}

}  // namespace ringreduce

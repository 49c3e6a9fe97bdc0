// A condition variable whose destructor never runs. In the child of a fork, it may still count threads of the
// parent as waiting, and destroying it would wait for them forever. It holds nothing that must be released.
#pragma once

#include <new>

namespace ringreduce {

template <typename T>
class Undestroyed {
 public:
  Undestroyed() { new (memory_) T; }
  Undestroyed(const Undestroyed&) = delete;
  Undestroyed& operator=(const Undestroyed&) = delete;
  T* operator->() { return std::launder(reinterpret_cast<T*>(memory_)); }

 private:
  alignas(T) unsigned char memory_[sizeof(T)];
};

}  // namespace ringreduce

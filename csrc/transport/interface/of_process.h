// State that belongs to one process.
#pragma once

#include <pthread.h>

namespace ringreduce {

// The process's T, which is never destroyed, because threads may outlive static objects. The child of a fork
// begins with a new one: another thread of its parent may have been changing the parent's. That one is kept,
// so that it does not count as leaked.
template <class T>
T& of_process() {
  struct Kept {
    T value;
    Kept* parents = nullptr;
  };
  static Kept* current = [] {
    pthread_atfork(nullptr, nullptr, [] { current = new Kept{{}, current}; });
    return new Kept{};
  }();
  return current->value;
}

}  // namespace ringreduce

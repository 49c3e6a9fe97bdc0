// Devices that are not there: numbers, as many as RINGREDUCE_EMULATED_DEVICES says.
#pragma once

#include "gpu/reduce/failures.h"

namespace ringreduce::emulated {

int device_count();
// The calling thread's: the first where it has no context.
int current_device();
// Whatever CUDA's runtime does needs a context: a thread that has none gets the current device's.
void need_context();
template <class Function>
const char* in_context(Function function) {
  return device::failure_of([&] {
    need_context();
    function();
  });
}
// Throws std::invalid_argument if there is none of this number.
void check_device(int device);
// The current device's kernels may read and write the other's memory from now on.
void reach(int other);
// Whether kernels of one may read and write the other's memory: it is its own, or reach() was called.
bool reaches(int device, int other);

// A positive number from the environment.
int setting(const char* name, int otherwise);

}  // namespace ringreduce::emulated

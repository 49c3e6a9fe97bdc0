// Memory of NumPy's arrays.
#pragma once

namespace ringreduce {

// From now on, NumPy takes arrays of at least 256 KiB that this thread makes from the engine's blocks while
// there are any, and smaller ones from its former allocator (NEP 49). Does nothing the second time. Raises
// RuntimeError if NumPy's allocator cannot be replaced.
void allocate_arrays();

}  // namespace ringreduce

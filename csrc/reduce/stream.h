// Copies past the cache: for memory that another core reads next, and this one not again soon.
#pragma once

#include <cstddef>

namespace ringreduce {

// Copies `bytes` with non-temporal stores where the machine has them; a fence at the end makes them visible
// before whatever is stored next. `destination` should be 64-byte aligned.
void stream(void* destination, const void* source, std::size_t bytes);

}  // namespace ringreduce

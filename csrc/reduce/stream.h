// Copies past the cache, for memory that another core reads next and this core does not need soon.
#pragma once

#include <cstddef>

namespace ringreduce {

// Copies `bytes` with non-temporal stores if the machine has them. A fence at the end makes them visible
// before later stores. `destination` should be 64-byte aligned.
void stream(void* destination, const void* source, std::size_t bytes);

}  // namespace ringreduce

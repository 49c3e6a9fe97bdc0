// Memory of CPU tensors that the other ranks of this host reach in place once it is communicated.
#pragma once

namespace ringreduce::torch_backend {

// From now on, torch takes CPU tensors of at least 256 KiB from the engine's blocks while there are any, and
// smaller ones from its former allocator. False if ours cannot take the place of that allocator.
bool allocate_tensors();

}  // namespace ringreduce::torch_backend

// Memory of CPU tensors that the other ranks of this host reach in place.
#pragma once

namespace ringreduce::torch_backend {

// From now on, torch takes CPU tensors of at least 256 KiB from shared memory while there is any, and smaller
// ones from its former allocator. False if ours cannot take the place of that allocator.
bool share_tensors();

}  // namespace ringreduce::torch_backend

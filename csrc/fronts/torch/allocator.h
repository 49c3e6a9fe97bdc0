// Memory of CPU tensors that the other ranks of this host reach in place.
#pragma once

namespace ringreduce::torch_backend {

// From now on torch takes CPU tensors of at least 256 KiB from shared memory, as far as there is any, and
// smaller ones from the allocator it had. False where that is one that ours cannot stand for.
bool share_tensors();

}  // namespace ringreduce::torch_backend

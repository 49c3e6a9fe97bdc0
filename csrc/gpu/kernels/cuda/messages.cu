#include "gpu/kernels/cuda/messages.h"
#include "gpu/kernels/cuda/rank_kernels.h"

namespace ringreduce::device {

__global__ void __launch_bounds__(rank_threads, 2) carry_messages(const __grid_constant__ Messages messages) {
  __shared__ Spans spans;
  Block block;
  Carrier(block, spans, messages).run();
}

const void* message_kernel() {
  return reinterpret_cast<const void*>(carry_messages);
}

}  // namespace ringreduce::device

// The process of each rank, and the GPU that it uses. From these, ranks see whose streams can block each
// other.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "gpu/device/library.h"

namespace ringreduce {

// There are as many queues between the GPU and a process as this variable says. If there are more streams,
// they share queues, and what runs on a stream may be behind something on another one that waits for it.
inline constexpr const char* queues_variable = "CUDA_DEVICE_MAX_CONNECTIONS";
// Streams that work at the same time: one for calls, one for asynchronous calls, one for uploads.
inline constexpr int streams_of_a_rank = 3;

// The end of an error that advises how ranks can share GPUs.
inline constexpr const char* or_nccl = ", or a GPU for each rank and RINGREDUCE_GPU_TRANSPORT=nccl";

// Unlike a process id, unique to a process in all namespaces.
std::array<char, 16> this_process();

struct Whereabouts {
  std::array<char, 16> process;
  std::array<char, device::identity_bytes> gpu;
  std::int32_t queues;
};
Whereabouts whereabouts_of(const CudaLibrary& cuda, int device);
// Throws Error if ranks of one process have more streams on a GPU than it has queues for them.
void check_queues(const std::vector<Whereabouts>& of_ranks);

}  // namespace ringreduce

// Collectives and messages with the arguments of NCCL's functions.
#pragma once

#include <span>

#include "fronts/nccl/member.h"

namespace ringreduce::nccl_api {

struct Asked {
  Collective collective;
  const void* input;
  void* output;
  std::size_t count;
  nccl::DataType type;
  nccl::ReduceOp op = nccl::sum;
  int root = 0;
};
// Throws if it is invalid.
void check(const Member& member, const Asked& asked);
// Launches it on the stream.
void collect(Member& member, const Asked& asked, nccl::Stream stream);

struct Message {
  void* data;  // a send only reads it
  std::size_t count;
  nccl::DataType type;
  int peer;
  bool sends;
};
void check(const Member& member, const Message& message);
// Launches messages on their streams, where kernels carry them. If none do, they go through host memory: a
// send waits for its stream's work, and a receive, after all sends, also for its peer.
struct Posted {
  Message message{};
  nccl::Stream stream = nullptr;
};
void carry(Member& member, std::span<const Posted> messages);

Member::Factor read_factor(const void* scalar, nccl::DataType type, nccl::Residence residence);

}  // namespace ringreduce::nccl_api

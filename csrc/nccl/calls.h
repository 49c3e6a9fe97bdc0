// Collectives and messages, as NCCL's functions have them.
#pragma once

#include "nccl/member.h"

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
// Throws what is wrong with it.
void check(const Member& member, const Asked& asked);
// Puts it on the stream.
void collect(Member& member, const Asked& asked, nccl::Stream stream);

// Messages go through the host's memory: a send waits for what the stream has to do, a receive also for its
// peer.
struct Message {
  void* data;  // a send only reads there
  std::size_t count;
  nccl::DataType type;
  int peer;
  bool sends;
};
void check(const Member& member, const Message& message);
void send(Member& member, const Message& message, nccl::Stream stream);
void receive(Member& member, const Message& message, nccl::Stream stream);

Member::Factor read_factor(const void* scalar, nccl::DataType type, nccl::Residence residence);

}  // namespace ringreduce::nccl_api

// What one rank is told to do, and what it comes to where all ranks have told it.
#pragma once

#include <cstddef>
#include <vector>

#include "gpu/libnccl/entry_points.h"

namespace ringreduce::emulated {

struct Operation {
  enum class Kind { send, receive, all_reduce, reduce_scatter, all_gather, broadcast, reduce };
  Kind kind;
  const char* from;
  char* to;
  std::size_t count;
  nccl::DataType type;
  nccl::ReduceOp op;
  int peer;                  // the other end, or the root
  std::vector<char> factor;  // of type; empty: nothing is scaled

  bool is_message() const { return kind == Kind::send || kind == Kind::receive; }
  // Whether they can be ranks' parts of the same collective.
  bool fits(const Operation& other) const;
};

std::size_t size_of(nccl::DataType type);
// Every rank's part, in rank order.
void perform(const std::vector<const Operation*>& parts);

}  // namespace ringreduce::emulated

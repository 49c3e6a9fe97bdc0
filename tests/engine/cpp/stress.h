// What the parts of the stress program have in common.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/communicator/communicator.h"

namespace stress {

using namespace ringreduce;

using Floats = std::vector<float>;

inline void require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "wrong: %s\n", what.c_str());
  std::abort();
}

// Small integers, so that sums are exact in any order.
inline float value(int rank, std::size_t i) {
  return static_cast<float>((rank + 1) * (static_cast<int>(i % 101) + 1));
}
inline float sum_of(int world, std::size_t i) {
  return value(world * (world + 1) / 2 - 1, i);
}

inline Floats filled(int rank, std::size_t first, std::size_t count) {
  Floats buffer(count);
  for (std::size_t i = 0; i < count; ++i) buffer[i] = value(rank, first + i);
  return buffer;
}

// Messages around the ring, and from everybody to everybody. `beside`: what another thread does meanwhile.
void messages_on(Communicator& comm, void (*beside)(Communicator&));
void tags_on(Communicator& comm);
void fetched_on(Communicator& comm);
void told_on(Communicator& comm);

// Peers that have closed, and one that waits for them.
void closing();

// The pool of large blocks.
void blocks();

// The pool of messages' buffers.
void buffers();

}  // namespace stress

// How slow a rank's stores are to memory that a peer has read.
//
// Where two cores do not share a cache, a store to a line that the other has read may wait 35 ns until that
// copy is gone (Zen 4, between chiplets), and a user who writes the next gradients into a buffer that peers
// read in place waits for each line. A line that the reader has also written comes back in 2 ns. Readers
// therefore take over what they read if the owner asks for it, and the owner asks while it is slow. Cores
// that share a cache wait 4 ns, but only for lines that are still in the reader's own cache. A sample of
// lines shows how long it takes, because hypervisors move cores.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "transport/interface/messages.h"

namespace ringreduce {

struct alignas(64) RewrittenSample {
  static constexpr std::size_t lines = 16;
  std::array<std::byte, lines * 64> bytes;
};

// Of one owner and one reader.
class Rewriting {
 public:
  Take take() const { return take_; }
  // Whether the peer should read the sample now, with some of its messages: it has been written.
  bool due(RewrittenSample& sample);
  // Rewrites the sample, which the peer has just read.
  void measure(RewrittenSample& sample);

  static constexpr std::uint32_t messages_per_sample = 16;
  // Lines are taken in long calls from so many nanoseconds a line on, and in short ones from a fifth of that
  // on. For tests.
  static void call_slow_from(double nanoseconds);

 private:
  void write(RewrittenSample& sample) const;

  std::uint32_t messages_ = 0;
  Take latest_ = Take::none, take_ = Take::none;  // two samples must agree: one may be interrupted
};

}  // namespace ringreduce

// Messages between two ranks' arrays in GPU memory, on the streams of the callers. Those of a pair (a peer
// and a direction) are matched in the order of the calls.
#pragma once

#include <cstdint>
#include <span>

#include "engine/messages/transfer.h"
#include "gpu/runner/runner.h"

namespace ringreduce {

class Messenger {
 public:
  virtual ~Messenger() = default;

  // Launches messages that make progress together. On the current device. From any thread. Throws
  // InvalidArgument for messages that it cannot carry.
  virtual void launch(std::span<const Transfer> transfers, const Launch& launch) = 0;
  // A stream for asynchronous messages of the transfer's pair.
  virtual void* stream_for(const Transfer& transfer) = 0;
};

// A word that both ends of a message compare; never 0.
inline constexpr int label_dtype_at = 56;
inline constexpr std::uint64_t label_mark = std::uint64_t{1} << 63;

inline std::uint64_t label_of(const Transfer& transfer) {
  return label_mark | static_cast<std::uint64_t>(transfer.dtype) << label_dtype_at | transfer.count;
}

inline Envelope envelope_of(std::uint64_t label) {
  Envelope envelope;
  envelope.dtype = static_cast<DType>((label & ~label_mark) >> label_dtype_at);
  envelope.count = label & ((std::uint64_t{1} << label_dtype_at) - 1);
  return envelope;
}

}  // namespace ringreduce

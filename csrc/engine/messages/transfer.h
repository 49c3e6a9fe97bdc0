// The envelope of a message, which describes the sender's call, and the texts that describe both calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/planning/call.h"
#include "transport/interface/transport.h"

namespace ringreduce {

std::string in_words(const Transfer& transfer, int rank);

// The sender's description of its message.
struct Envelope {
  int tag = 0;
  DType dtype = DType::float32;
  std::size_t count = 0;     // elements
  bool has_body = false;     // large: its body comes when the receiver is ready
  std::uint32_t number = 0;  // of the body

  std::size_t bytes() const { return count * size_of(dtype); }
};

std::string in_words(const Envelope& envelope);

// The word in which a collective sends its contract tells the pieces of a message apart: kind, dtype, and tag
// or number. The lane of messages carries `whole` and `offer`, that of bodies `ready` and `body`.
enum class Piece : std::uint8_t { whole = 1, offer, ready, body };

inline std::uint64_t label(Piece piece, std::uint32_t value, DType dtype = DType{}) {
  return static_cast<std::uint64_t>(piece) << 40 | static_cast<std::uint64_t>(dtype) << 32 | value;
}

// Sent in an offer instead of the message.
struct Offer {
  std::uint64_t count;
  std::uint64_t number;
};

// Reads what came on the lane of messages. Throws Failure if it cannot be an envelope.
Envelope read_envelope(int source, const Message& message);

// The failure for a message that does not match its receive, with both calls.
Failure disagreement(int source, const Envelope& envelope, const Transfer& receive, int rank);

}  // namespace ringreduce

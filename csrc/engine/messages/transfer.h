// What the sender's call says of a message on the way, and both calls in words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/planning/call.h"
#include "transport/interface/transport.h"

namespace ringreduce {

std::string in_words(const Transfer& transfer, int rank);

// What a sender says of its message.
struct Envelope {
  int tag = 0;
  DType dtype = DType::float32;
  std::size_t count = 0;     // elements
  bool has_body = false;     // large: its body comes when the receiver is ready for it
  std::uint32_t number = 0;  // of the body

  std::size_t bytes() const { return count * size_of(dtype); }
};

std::string in_words(const Envelope& envelope);

// The pieces of a message are told apart by the word that a collective uses for its contract: kind, dtype,
// and tag or number. On the lane of messages travel `whole` and `offer`, on that of bodies `ready` and
// `body`.
enum class Piece : std::uint8_t { whole = 1, offer, ready, body };

inline std::uint64_t label(Piece piece, std::uint32_t value, DType dtype = DType{}) {
  return static_cast<std::uint64_t>(piece) << 40 | static_cast<std::uint64_t>(dtype) << 32 | value;
}

// What travels in an offer instead of the message.
struct Offer {
  std::uint64_t count;
  std::uint64_t number;
};

// Of what came on the lane of messages. Throws Failure if that cannot be.
Envelope read_envelope(int source, const Message& message);

// Of a message and a receive that do not fit: who called what, for both to read.
Failure disagreement(int source, const Envelope& envelope, const Transfer& receive, int rank);

}  // namespace ringreduce

#include "engine/messages/transfer.h"

#include <cstring>
#include <limits>

namespace ringreduce {
namespace {

std::string what(const char* call, DType dtype, std::size_t count, int tag) {
  return std::string(call) + "(" + name_of(dtype) + "[" + std::to_string(count) + "]" +
         (tag ? ", tag " + std::to_string(tag) : "") + ")";
}

std::string name_of_rank(int rank) {
  return rank == any_source ? "any rank" : "rank " + std::to_string(rank);
}

}  // namespace

std::string in_words(const Transfer& t, int rank) {
  const std::string own = "rank " + std::to_string(rank);
  return t.sends ? what("send", t.dtype, t.count, t.tag) + " from " + own + " to " + name_of_rank(t.peer)
                 : what("recv", t.dtype, t.count, t.tag) + " by " + own + " from " + name_of_rank(t.peer);
}

std::string in_words(const Envelope& e) {
  return what("send", e.dtype, e.count, e.tag);
}

Envelope read_envelope(int source, const Message& message) {
  const auto piece = static_cast<Piece>(message.contract >> 40);
  const auto dtype = static_cast<DType>(message.contract >> 32 & 0xff);
  Envelope envelope{static_cast<int>(message.contract), dtype, 0};
  if (static_cast<int>(dtype) < dtype_count) {
    const std::size_t element = size_of(dtype);
    if (piece == Piece::whole && message.bytes % element == 0) {
      envelope.count = message.bytes / element;
      return envelope;
    }
    if (piece == Piece::offer && message.bytes == sizeof(Offer)) {
      Offer words;
      std::memcpy(&words, message.data, sizeof words);
      envelope.count = words.count;
      envelope.number = static_cast<std::uint32_t>(words.number);
      envelope.has_body = true;
      if (words.count <= std::numeric_limits<std::ptrdiff_t>::max() / element) return envelope;
    }
  }
  throw Failure(Cause::mismatch, source,
                "rank " + std::to_string(source) + " sent something that does not begin a message");
}

Failure disagreement(int source, const Envelope& envelope, const Transfer& receive, int rank) {
  return Failure(Cause::mismatch, source,
                 "a message does not match its recv: rank " + std::to_string(source) + ": " +
                     what("send", envelope.dtype, envelope.count, envelope.tag) + " to rank " +
                     std::to_string(rank) + "; rank " + std::to_string(rank) + ": " +
                     what("recv", receive.dtype, receive.count, receive.tag) + " from " +
                     name_of_rank(receive.peer));
}

}  // namespace ringreduce

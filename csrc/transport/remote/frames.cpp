#include "transport/remote/frames.h"

namespace ringreduce {
namespace {

constexpr std::size_t longest_word = std::size_t{1} << 20;  // bytes of a frame that is no message

}  // namespace

void Frames::written(int peer, const Outgoing& frame) {
  if (frame.buffer) outbox.pool.release(frame.buffer);
  if (frame.header.kind == FrameKind::message) messages.written(peer, frame.header);
}

void Frames::discard(int peer) {
  for (Outgoing frame; outbox.take(peer, frame);) written(peer, frame);
}

bool Frames::drop(int peer, const Outgoing& frame) {
  if (frame.is_lent()) messages.drop(peer, frame.header);
  return frame.is_lent();
}

Landing Frames::land(int peer, const FrameHeader& header) {
  if (header.kind == FrameKind::message) return messages.land(peer, header);
  if (header.bytes > longest_word) throw Error("a frame of " + std::to_string(header.bytes) + " bytes");
  return outbox.pool.room(header.bytes);
}

void Frames::landed(int peer, const FrameHeader& header, const Landing& landing) {
  words.heard_from(peer);
  if (header.kind == FrameKind::message) return messages.landed(peer, header, landing);
  const std::string text(reinterpret_cast<const char*>(landing.at), header.bytes);
  if (landing.buffer) outbox.pool.release(landing.buffer);
  if (header.kind == FrameKind::credit) return messages.hear_credit(peer, header);
  words.hear(peer, header.kind, text);
}

}  // namespace ringreduce

// All frames between this rank and its peers: messages and control.
#pragma once

#include "transport/remote/control_messages.h"

namespace ringreduce {

// Not thread-safe.
class Frames {
 public:
  Frames(Transport& group, Wire& wire)
      : outbox(group.world, wire), messages(group.world, outbox), control(group, wire, outbox, messages) {}

  // Called once for each frame taken from the outbox, when it has been written or has no reader any more.
  void written(int peer, const Outgoing& frame) {
    if (frame.buffer) outbox.pool.release(frame.buffer);
    if (frame.header.kind == FrameKind::message) messages.written(peer, frame.header);
  }
  // For a peer that has left: counts frames to it as written.
  void discard(int peer) {
    for (Outgoing frame; outbox.take(peer, frame);) written(peer, frame);
  }
  // Whether a frame that has not begun must not be sent any more, because it lies in the caller's memory; it
  // is then forgotten.
  bool drop(int peer, const Outgoing& frame) {
    if (frame.is_lent()) messages.drop(peer, frame.header);
    return frame.is_lent();
  }
  // Where an incoming frame belongs. `here`: the buffer in which all of it already is, if any. Throws Error
  // if no rank sends such a frame.
  Landing land(int peer, const FrameHeader& header, Buffer* here = nullptr) {
    if (header.kind == FrameKind::message) return messages.land(peer, header, here);
    if (header.bytes > longest_word) throw Error("a frame of " + std::to_string(header.bytes) + " bytes");
    return outbox.pool.room(header.bytes, here);
  }
  void landed(int peer, const FrameHeader& header, const Landing& landing) {
    control.heard_from(peer);
    if (header.kind == FrameKind::message) return messages.landed(peer, header, landing);
    const std::string text(reinterpret_cast<const char*>(landing.at), header.bytes);
    if (landing.buffer) outbox.pool.release(landing.buffer);
    if (header.kind == FrameKind::credit) return messages.hear_credit(peer, header);
    control.receive(peer, header.kind, text);
  }

  Outbox outbox;
  Messages messages;
  ControlMessages control;

 private:
  static constexpr std::size_t longest_word = std::size_t{1} << 20;  // bytes of a frame that is not a message
};

}  // namespace ringreduce

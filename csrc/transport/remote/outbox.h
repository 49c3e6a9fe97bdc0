// Frames for the peers, and the memory that frames lie in.
#pragma once

#include <algorithm>
#include <deque>
#include <string_view>
#include <vector>

#include "transport/remote/frame.h"
#include "transport/remote/wire.h"

namespace ringreduce {

class Outbox {
 public:
  Outbox(int world, Wire& wire) : wire_(wire), peers_(static_cast<std::size_t>(world)) {}

  void send(int peer, const Outgoing& message) {
    peers_[peer].messages.push_back(message);
    wire_.dispatch(peer);
  }
  // Sends a message whose bytes may change when this returns.
  void send_copy(int peer, Outgoing message) {
    if (!has_frames(peer) && wire_.send_at_once(peer, message)) return;
    // With space for its header, so that both can go in one piece.
    message.buffer = pool.take(message.header.bytes + sizeof(FrameHeader));
    std::copy_n(message.data, message.header.bytes, message.buffer->data);
    message.data = message.buffer->data;
    send(peer, message);
  }
  // Sends a frame that is not a message.
  void send_control(int peer, FrameKind kind, std::string_view text = {}, FrameHeader header = {}) {
    header.kind = kind;
    header.bytes = static_cast<std::uint32_t>(text.size());
    Outgoing frame{header};
    if (!text.empty()) {
      frame.buffer = pool.take(text.size());
      frame.data = frame.buffer->data;
      std::copy(text.begin(), text.end(), reinterpret_cast<char*>(frame.buffer->data));
    }
    peers_[peer].control.push_back(frame);
    wire_.dispatch(peer);
  }
  // The next frame for a peer, if any. ControlMessages overtake messages, which may wait for readers. Of a
  // longer message than `most` bytes, a piece.
  bool take(int peer, Outgoing& frame, std::size_t most = ~std::size_t{0}) {
    auto& [control, messages] = peers_[peer];
    return take_front(control.empty() ? messages : control, frame, most);
  }
  // The same for frames of the flow of messages alone, credits first: for wires with another way for control.
  bool take_flow(int peer, Outgoing& frame, std::size_t most) {
    auto& [control, messages] = peers_[peer];
    const auto is_credit = [](const Outgoing& one) { return one.header.kind == FrameKind::credit; };
    const auto credit = std::find_if(control.begin(), control.end(), is_credit);
    if (credit == control.end()) return take_front(messages, frame, most);
    frame = *credit;
    control.erase(credit);
    return true;
  }
  bool has_frames(int peer) const { return !peers_[peer].control.empty() || !peers_[peer].messages.empty(); }
  std::deque<Outgoing>& messages(int peer) { return peers_[peer].messages; }
  // Forgets everything, at the end.
  void clear() {
    for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
      for (Outgoing frame; take(static_cast<int>(peer), frame);) {
        if (frame.buffer) pool.release(frame.buffer);
      }
    }
  }

  Pool pool;

 private:
  struct Peer {
    std::deque<Outgoing> control, messages;
  };

  static bool take_front(std::deque<Outgoing>& frames, Outgoing& frame, std::size_t most) {
    if (frames.empty()) return false;
    frame = frames.front();
    if (frame.header.kind == FrameKind::message && frame.header.bytes > most) {
      frame.header.bytes = static_cast<std::uint32_t>(most);
      Outgoing& rest = frames.front();
      rest.header.bytes -= frame.header.bytes;
      rest.header.begin += frame.header.bytes;
      rest.data += most;
      if (rest.buffer) ++rest.buffer->users;
    } else {
      frames.pop_front();
    }
    return true;
  }
  Wire& wire_;
  std::vector<Peer> peers_;
};

}  // namespace ringreduce

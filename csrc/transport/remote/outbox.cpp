#include "transport/remote/outbox.h"

#include <algorithm>

namespace ringreduce {

void Outbox::send(int peer, const Outgoing& message) {
  peers_[peer].messages.push_back(message);
  wire_.dispatch(peer);
}

void Outbox::tell(int peer, FrameKind kind, std::string_view text, FrameHeader header) {
  header.kind = kind;
  header.bytes = static_cast<std::uint32_t>(text.size());
  Outgoing frame{header};
  if (!text.empty()) {
    frame.buffer = pool.take(text.size());
    frame.data = frame.buffer->data;
    std::copy(text.begin(), text.end(), reinterpret_cast<char*>(frame.buffer->data));
  }
  peers_[peer].words.push_back(frame);
  wire_.dispatch(peer);
}

bool Outbox::take(int p, Outgoing& frame) {
  Peer& peer = peers_[p];
  std::deque<Outgoing>& frames = peer.words.empty() ? peer.messages : peer.words;
  if (frames.empty()) return false;
  frame = frames.front();
  frames.pop_front();
  return true;
}

void Outbox::clear() {
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    for (Outgoing frame; take(static_cast<int>(peer), frame);) {
      if (frame.buffer) pool.release(frame.buffer);
    }
  }
}

}  // namespace ringreduce

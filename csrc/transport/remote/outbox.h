// Frames that are to go to the peers, and the memory that frames lie in.
#pragma once

#include <deque>
#include <string_view>
#include <vector>

#include "transport/remote/frame.h"
#include "transport/remote/wire.h"

namespace ringreduce {

class Outbox {
 public:
  Outbox(int world, Wire& wire) : wire_(wire), peers_(static_cast<std::size_t>(world)) {}

  void send(int peer, const Outgoing& message);
  // What is no message.
  void tell(int peer, FrameKind kind, std::string_view text = {}, FrameHeader header = {});
  // The next frame for a peer, if there is one: words overtake messages, which may wait for readers.
  bool take(int peer, Outgoing& frame);
  bool has_frames(int peer) const { return !peers_[peer].words.empty() || !peers_[peer].messages.empty(); }
  std::deque<Outgoing>& messages(int peer) { return peers_[peer].messages; }
  // Forgets all, for the end.
  void clear();

  Pool pool;

 private:
  struct Peer {
    std::deque<Outgoing> words, messages;
  };
  Wire& wire_;
  std::vector<Peer> peers_;
};

}  // namespace ringreduce

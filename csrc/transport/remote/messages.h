// The flow of messages between ranks that share no memory.
//
// Each lane to each peer has a window, which limits the messages and bytes in flight that the peer has not
// released yet. The receiver takes everything off the wire as it comes, so a lane without a reader does not
// block another one, and the memory that this needs is bounded.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "transport/remote/outbox.h"

namespace ringreduce {

// Not thread-safe, except flushed(). Functions named as in Transport do what it says there.
class Messages {
 public:
  static constexpr std::size_t window_bytes = std::size_t{4} << 20;
  // By lane.
  using Counts = std::array<std::uint32_t, Transport::lanes>;

  Messages(int world, Outbox& outbox) : outbox_(outbox), peers_(static_cast<std::size_t>(world)) {}
  ~Messages() { forget(); }

  bool send(int lane, Peers peers, const void* data, std::size_t bytes, std::uint64_t contract);
  std::byte* reserve(int lane, Peers peers, std::size_t bytes);
  void post(int lane, Peers peers, std::size_t bytes, std::uint64_t contract);
  bool lend(int lane, Peers peers, const std::byte* data, std::size_t bytes, std::uint64_t contract);
  // Whether this many more bytes may be in flight to these peers.
  bool has_room(int lane, Peers peers, std::size_t bytes);
  int in_the_way(int lane, Peers peers);
  std::uint32_t sent(int lane, int peer) const;
  bool consumed(int lane, int peer, std::uint32_t sent);
  bool flushed(int lane) const { return unwritten_[lane].load(std::memory_order_acquire) == 0; }
  bool poll(int lane, int peer, Message& message) const;
  void place(int lane, int peer, std::byte* where, std::size_t bytes, std::uint64_t contract);
  void release(int lane, int peer);

  // Where an incoming message belongs. `here`: the buffer in which it already is, if any. Throws Error if no
  // rank sends such a message.
  Landing land(int peer, const FrameHeader& header, Buffer* here);
  void landed(int peer, const FrameHeader& header, const Landing& landing);
  void written(int peer, const FrameHeader& header);
  // A message that has not begun will not be sent.
  void drop(int peer, const FrameHeader& header);
  void hear_credit(int peer, const FrameHeader& header);

  // The callers take their memory back: nothing more is received into it or sent from it.
  void let_go_of_callers();
  // Releases all memory, at the end.
  void forget();

  // All messages that a peer has been or will be sent.
  Counts sent_to(int peer) const;
  // Whether at least so many messages have come. A rank that closes in the middle of a call may send more
  // than it announces.
  bool have_come(int peer, const Counts& sent) const;
  // The contract of the latest message of a collective from a peer.
  std::uint64_t contract(int peer) const { return peers_[peer].contract; }

 private:
  static constexpr std::uint32_t window = 64;  // messages

  // The sending end towards one peer on one lane.
  struct Out {
    std::uint32_t sent = 0;      // messages
    std::uint32_t written = 0;   // the first so many are all on the wire
    std::uint32_t released = 0;  // by the peer
    std::uint32_t dropped = 0;   // and will not be sent
    std::size_t under_way = 0;   // bytes that were not released
    std::uint64_t done = 0;      // a bit for each message behind `written` that is on the wire
    std::uint64_t cut = 0;       // a bit for each of those dropped, by number
    std::array<std::uint32_t, window> bytes{}, unwritten{};
  };
  struct Arrival {
    bool complete = false;
    std::uint32_t bytes = 0;
    std::uint32_t landed = 0;  // of a message in pieces, which has a landing from the first of them on
    std::uint64_t contract = 0;
    Landing landing;
    bool is_placed() const { return landing.at && !landing.buffer; }
  };
  struct Place {
    std::byte* where = nullptr;
    std::size_t bytes = 0;
    std::uint64_t contract = 0;
  };
  struct In {
    std::uint32_t arrived = 0;  // messages, in any order
    std::uint32_t received = 0;
    std::uint32_t credited = 0;
    std::size_t uncredited_bytes = 0;
    Place place;  // for the message after those received
    std::array<Arrival, window> arrivals;
  };
  struct Peer {
    std::array<std::unique_ptr<Out>, Transport::lanes> outs;
    std::array<std::unique_ptr<In>, Transport::lanes> ins;
    std::uint64_t contract = 0;
  };

  // Created on first use.
  template <typename End>
  static End& made(std::unique_ptr<End>& end) {
    if (!end) [[unlikely]]
      end = std::make_unique<End>();
    return *end;
  }
  Out& out(int lane, int peer) { return made(peers_[peer].outs[lane]); }
  In& in(int lane, int peer) { return made(peers_[peer].ins[lane]); }
  // The next message to a peer.
  Outgoing put(int lane, int peer, const void* data, std::size_t bytes, std::uint64_t contract,
               Buffer* buffer);
  static void check(const FrameHeader& header);
  Landing landing_for(In& in, const FrameHeader& header, Buffer* here);
  Landing land_piece(In& in, const FrameHeader& header);
  bool piece_landed(In& in, const FrameHeader& header, const Landing& landing);
  void discard(Arrival& arrival);

  Outbox& outbox_;
  std::vector<Peer> peers_;
  std::array<std::atomic<std::uint32_t>, Transport::lanes> unwritten_{};  // changed under the lock
  std::array<Buffer*, Transport::lanes> reserved_{};
  bool let_go_ = false;  // of the callers' memory
};

}  // namespace ringreduce

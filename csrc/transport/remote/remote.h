// The transport between ranks that share no memory: everything but how a frame gets to a peer, and how one
// learns that a peer is dead. TcpTransport (sockets) and MpiTransport (a user's MPI) add those.
//
// Each lane to each peer has a window: so many messages, and bytes, may be on their way that the peer has not
// released yet. It takes everything off the wire as it comes, so what one lane has no reader for does not
// stand in another's way, and what that needs in memory is bounded.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "transport/interface/transport.h"
#include "transport/remote/brief_lock.h"
#include "transport/remote/frame.h"
#include "transport/remote/pool.h"

namespace ringreduce {

class RemoteTransport : public Transport {
 public:
  RemoteTransport(int rank, int world, bool oversubscribed);
  ~RemoteTransport() override;

  bool oversubscribed() const override { return oversubscribed_; }
  std::size_t capacity() const override { return window_bytes; }
  std::size_t footprint() const override;

  bool send(int lane, Peers peers, const void* data, std::size_t bytes, std::uint64_t contract) override;
  std::byte* reserve(int lane, Peers peers, std::size_t bytes) override;
  void post(int lane, Peers peers, const std::byte* reserved, std::size_t bytes,
            std::uint64_t contract) override;
  int in_the_way(int lane, Peers peers) override;
  // All memory can be sent from as it is: lent bytes are read until consumed(), which here means that they
  // are on the wire.
  bool reachable(const void*, std::size_t) override { return true; }
  bool reachable_by(Peers) const override { return true; }
  bool lend(int lane, Peers peers, const std::byte* data, std::size_t bytes, std::uint64_t contract,
            std::byte* grant) override;
  bool announce(int, Peers, std::size_t, std::uint64_t) override { return false; }  // nothing is granted
  std::uint32_t sent(int lane, int peer) const override;
  bool consumed(int lane, int peer, std::uint32_t sent) override;
  bool flushed(int lane) override;
  bool poll(int lane, int peer, Message& message) override;
  void place(int lane, int peer, std::byte* where, std::size_t bytes, std::uint64_t contract) override;
  void release(int lane, int peer) override;

  bool pause(Backoff& backoff, int waiting_for) override;
  // For peers that ask, where this rank waits elsewhere.
  void say_whom_we_wait_for(int peer) { waiting_for_.store(peer, std::memory_order_relaxed); }
  // Whether so many bytes more may be on their way to these peers.
  bool has_room(int lane, Peers peers, std::size_t bytes);
  // Moves what can move at once, without waiting: for those who wait for something else.
  bool pump();
  void wake() override;
  bool closed(int peer) const override;
  void abort(const Failure& failure) override;
  void record(const Record& record) override;
  std::vector<Record> records(int of_rank) const override;
  std::optional<int> waits_for(int of_rank, Clock::duration lately) const override;

  void show(const Board& board) override;
  Board board(int of_rank) override;
  bool is_gone(int peer) override;
  Clock::duration last_words_take() const override;
  void await_boards() override;

 protected:
  using Lock = std::unique_lock<BriefLock>;
  static constexpr std::size_t window_bytes = std::size_t{4} << 20;
  static constexpr std::uint32_t window_messages = 64;

  // What a kind of wire adds; all of it is called with the lock held.

  // Moves frames for a peer on, as many as go at once: each take() is to end with written().
  virtual void dispatch(int peer) = 0;
  // Moves whatever can move, both ways; waits up to `limit` for something to do, without the lock. True if
  // anything moved.
  virtual bool progress(Lock& lock, Clock::duration limit) = 0;
  // Ends a progress() that waits in another thread.
  virtual void interrupt() = 0;
  // Finds out whether a silent peer lives: sooner or later calls lost() if not.
  virtual void look_after(int peer) = 0;
  // The caller may take its memory away: what is received goes elsewhere from now on, and of what was lent
  // only frames that peers have had the beginning of are sent, from memory of ours.
  virtual void withdraw() = 0;
  // Whether frames have gone to or come from a peer.
  virtual bool connected(int peer) const = 0;
  // The calls have ended by a failure. Ranks that do not know yet may come later, and must find somebody who
  // tells them, while this rank may do something else.
  virtual void answer_latecomers() {}

  // What the wire tells.
  bool take(int peer, Outgoing& frame);
  bool has_frames(int peer) const { return !peers_[peer].words.empty() || !peers_[peer].messages.empty(); }
  void written(int peer, const Outgoing& frame);
  // Throws Error where no rank sends such a frame.
  Landing land(int peer, const FrameHeader& header);
  void landed(int peer, const FrameHeader& header, const Landing& landing);
  void lost(int peer, const std::string& how);
  bool is_lost(int peer) const { return peers_[peer].lost; }
  bool has_closed(int peer) const;
  bool has_said_bye(int peer) const { return peers_[peer].bye.has_value(); }

  // There is a connection to a peer that was not there before.
  void connected_to(int peer);
  // Lets this thread, or another one for all that wait, see to the wire.
  void sleep(Lock& lock, Clock::duration limit);
  // Whether the calls have ended by a failure, and let go of the caller's memory.
  bool has_ended() const { return ended_; }
  void say_bye();
  // Ends all, here and, as far as they are connected, on the other ranks.
  bool end_all(const Failure& found);
  // As above, for all that this transport has to do with the caller's memory.
  void let_go_of_callers();
  // A message that has not begun will not be sent.
  void drop(int peer, const Outgoing& frame);
  static bool is_lent(const Outgoing& frame) { return frame.header.bytes > 0 && !frame.buffer; }
  // Bytes given back, frames forgotten: for the end.
  void forget_frames();

  mutable BriefLock mutex_;
  Pool pool_;

 private:
  // The sending end towards one peer on one lane.
  struct Out {
    std::uint32_t sent = 0;      // messages
    std::uint32_t written = 0;   // all of the first so many are on the wire
    std::uint32_t released = 0;  // by the peer
    std::uint32_t dropped = 0;   // and will not be sent
    std::size_t under_way = 0;   // bytes not released
    std::uint64_t done = 0;      // a bit for each message behind `written` that is on the wire
    std::array<std::uint32_t, window_messages> bytes{};
  };
  struct Arrival {
    bool complete = false, placed = false;
    std::uint32_t bytes = 0;
    std::uint64_t contract = 0;
    Landing landing;
  };
  struct Place {
    std::byte* where = nullptr;
    std::size_t bytes = 0;
    std::uint64_t contract = 0;
  };
  struct In {
    std::uint32_t arrived = 0;  // messages, in whatever order
    std::uint32_t received = 0;
    std::uint32_t credited = 0;
    std::size_t uncredited_bytes = 0;
    Place place;  // for the message after those received
    std::array<Arrival, window_messages> arrivals;
  };
  struct Peer {
    std::deque<Outgoing> words, messages;  // to be taken; words overtake messages, which may wait for readers
    std::array<std::unique_ptr<Out>, lanes> outs;
    std::array<std::unique_ptr<In>, lanes> ins;
    std::optional<std::array<std::uint32_t, lanes>> bye;
    bool lost = false;
    std::string how;      // it was lost
    bool spoken = false;  // since check_peers() last looked: nobody reads a clock for each frame
    Clock::time_point heard;
    std::vector<Record> records;
    std::uint64_t contract = 0;  // of the latest message of a collective
    bool asked = false;          // for a status that has not come yet
    int waits_for = -1;          // as its last status said
    Clock::time_point answered;  // when that came
    Board board;
  };

  Out& out(int lane, int peer);
  In& in(int lane, int peer);
  bool fits(int lane, Peers peers, std::size_t bytes);
  std::byte* room_for(int lane, Peers peers, std::size_t bytes);
  void post_room(int lane, Peers peers, std::size_t bytes, std::uint64_t contract);
  void put(int lane, int peer, const std::byte* data, std::size_t bytes, std::uint64_t contract,
           Buffer* buffer);
  void discard(Arrival& arrival);
  void arrive(int peer, const FrameHeader& header, const Landing& landing);
  void hear(int peer, const FrameHeader& header, const std::string& text);
  void hear_credit(int peer, const FrameHeader& header);
  void hear_abort(const std::string& text);
  void hear_status(int peer, const std::string& text);
  void hear_bye(int peer, const std::string& text);
  void hear_board(int peer, const std::string& text);
  void tell(int peer, FrameKind kind, const std::string& text = "", FrameHeader header = {});
  void ask(int peer);
  void tell_status(int peer);
  void tell_board(int peer);
  void spread(const std::string& text);
  bool end_calls();
  void answer_questions(Lock& lock);
  void let_others_look();
  void check_peers(Backoff& backoff, int waiting_for);
  void check_silence(const Backoff& backoff, int of_peer);
  void check_losses(Clock::time_point now);
  void check_agreement();
  void ask_all(Lock& lock);
  std::vector<Record> known_records(int of_rank) const;

  const bool oversubscribed_;
  std::vector<Peer> peers_;
  std::array<std::atomic<std::uint32_t>, lanes> unwritten_{};  // messages; changed with the lock held
  std::array<Buffer*, lanes> reserved_{};
  std::vector<Record> own_records_;
  Board own_board_;
  bool boards_are_late_ = false;
  std::atomic<int> waiting_for_{-1};
  bool ended_ = false;
  std::string told_;  // to peers, of the failure
  bool said_bye_ = false;
  int lost_count_ = 0;
  Clock::time_point lost_since_;
  Clock::time_point asked_;
  bool driving_ = false;  // a thread is in progress() without the lock
  int followers_ = 0;     // threads that wait for it
  std::atomic<std::uint32_t> moved_{0};
};

}  // namespace ringreduce

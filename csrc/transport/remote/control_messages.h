// Control messages between ranks that share no memory: who called what, whom a rank waits for, how the group
// ended, who survives. Also decides what a peer's silence means.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transport/remote/messages.h"

namespace ringreduce {

// Not thread-safe, except say_whom_we_wait_for(). Functions named as in Transport do what it says there.
class ControlMessages {
 public:
  // `group` is the transport that this belongs to: its ranks, and its fate.
  ControlMessages(Transport& group, Wire& wire, Outbox& outbox, Messages& messages)
      : group_(group),
        rank_(group.rank),
        world_(group.world),
        wire_(wire),
        outbox_(outbox),
        messages_(messages),
        peers_(static_cast<std::size_t>(world_)) {}

  // Throws Error if no rank says such a thing.
  void receive(int peer, FrameKind kind, std::string_view text);
  // Something arrived from a peer.
  void heard_from(int peer) { peers_[peer].spoken = true; }
  // There is a new connection to a peer.
  void connected_to(int peer);

  void record(const Record& record);
  std::vector<Record> records(int of_rank) const;
  // Asks all reachable ranks what they called; false if they were asked a moment ago.
  bool ask_all();
  // Whether a rank that was asked may still answer; one that computes does not.
  bool answers_are_due() const;
  // For peers that ask.
  void say_whom_we_wait_for(int peer) { waiting_for_.store(peer, std::memory_order_relaxed); }
  std::optional<int> waits_for(int of_rank, Clock::duration lately) const;

  // Ends all calls here and on the connected ranks; false if that has happened before. `first_hand`: this
  // rank noticed the failure, so the others are also told what it called.
  bool end_all(const Failure& found, bool first_hand = true);
  // Whether a failure has ended the calls, which no longer use the callers' memory.
  bool have_ended() const { return !told_.empty(); }
  // Drops all uses of the callers' memory, which they may free now.
  void let_go_of_callers();
  void say_bye();

  // `certain`: the peer's own system says so.
  void lost(int peer, const std::string& how, bool certain);
  bool is_lost(int peer) const { return peers_[peer].lost.has_value(); }
  bool has_said_bye(int peer) const { return peers_[peer].bye.has_value(); }
  // Whether the peer no longer reads what is sent to it.
  bool has_left(int peer) const { return is_lost(peer) || has_said_bye(peer); }
  // Whether it has said bye, and everything that it had sent has arrived or no longer can.
  bool closed(int peer) const;

  // For long waits. Throws what Transport::pause() throws.
  void check_losses() const;
  void check_peers(Backoff& backoff, int waiting_for);

  void show(const Board& board);
  const Board& board(int of_rank) const { return of_rank == rank_ ? own_board_ : peers_[of_rank].board; }
  bool is_gone(int peer);
  bool has_ended(int peer) const { return closed(peer) || peers_[peer].certain; }
  void boards_are_late() { boards_are_late_ = true; }

 private:
  struct Peer {
    std::optional<Messages::Counts> bye;
    std::optional<std::string> lost;  // how
    bool certain = false;             // that it has ended, if it is lost
    bool spoken = false;  // since check_silence() last looked, because reading a clock per frame is too slow
    Clock::time_point heard;
    std::vector<Record> records;
    bool asked = false;          // for a status that has not arrived yet
    int waits_for = -1;          // according to its last status
    Clock::time_point answered;  // when it arrived
    Board board;
  };

  void tell_status(int peer);
  void hear_status(int peer, std::string_view text);
  void hear_abort(std::string_view text);
  void hear_bye(int peer, std::string_view text);
  void hear_board(int peer, std::string_view text);
  void ask(int peer);
  bool can_answer(int peer) const;
  void check_silence(Clock::time_point since, int of_peer);
  void check_agreement() const;

  Transport& group_;
  const int rank_, world_;
  Wire& wire_;
  Outbox& outbox_;
  Messages& messages_;
  std::vector<Peer> peers_;
  std::vector<Record> own_records_;
  Clock::time_point asked_;  // all of them
  std::atomic<int> waiting_for_{-1};
  std::string told_;                             // to peers, about the failure that ended all calls
  std::optional<Clock::time_point> lost_since_;  // the first peer that had not closed
  Board own_board_;
  bool boards_are_late_ = false;
};

}  // namespace ringreduce

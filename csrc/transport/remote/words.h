// What ranks that share no memory tell each other beside messages: who called what, whom they wait for, how
// it ended, who survives. And what it means where a peer says nothing.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "transport/remote/messages.h"

namespace ringreduce {

// Not for several threads at once, but for say_whom_we_wait_for(). What Transport has under the same name is
// as it says there.
class Words {
 public:
  // `group` is the transport that all of it is about: its ranks, and its fate.
  Words(Transport& group, Wire& wire, Outbox& outbox, Messages& messages)
      : group_(group),
        rank_(group.rank),
        world_(group.world),
        wire_(wire),
        outbox_(outbox),
        messages_(messages),
        peers_(static_cast<std::size_t>(world_)) {}

  // Throws Error where no rank says such a thing.
  void hear(int peer, FrameKind kind, std::string_view text);
  // Something has come from a peer.
  void heard_from(int peer) { peers_[peer].spoken = true; }
  // There is a connection to a peer that was not there before.
  void connected_to(int peer);

  void record(const Record& record);
  std::vector<Record> records(int of_rank) const;
  // Asks what they called all who can be reached; false where they were asked a moment ago.
  bool ask_all();
  // Whether somebody who was asked may still answer: who computes does not.
  bool answers_are_due() const;
  // For peers that ask.
  void say_whom_we_wait_for(int peer) { waiting_for_.store(peer, std::memory_order_relaxed); }
  std::optional<int> waits_for(int of_rank, Clock::duration lately) const;

  // Ends all, here and, as far as they are connected, on the other ranks; false if that has happened before.
  // `first_hand`: it was found here, so that the others are told what this rank called, too.
  bool end_all(const Failure& found, bool first_hand = true);
  // Whether the calls have ended by a failure, and let go of the callers' memory.
  bool have_ended() const { return !told_.empty(); }
  // For all that this transport has to do with the callers' memory: they may free it now.
  void let_go_of_callers();
  void say_bye();

  void lost(int peer, const std::string& how);
  bool is_lost(int peer) const { return peers_[peer].lost.has_value(); }
  bool has_said_bye(int peer) const { return peers_[peer].bye.has_value(); }
  // Nobody there reads what would be sent.
  bool has_left(int peer) const { return is_lost(peer) || has_said_bye(peer); }
  // And all that it had sent has come.
  bool closed(int peer) const;

  // For a wait that has become long. Throws what Transport::pause() does.
  void check_losses() const;
  void check_peers(Backoff& backoff, int waiting_for);

  void show(const Board& board);
  const Board& board(int of_rank) const { return of_rank == rank_ ? own_board_ : peers_[of_rank].board; }
  bool is_gone(int peer);
  void boards_are_late() { boards_are_late_ = true; }

 private:
  struct Peer {
    std::optional<Messages::Counts> bye;
    std::optional<std::string> lost;  // how it was
    bool spoken = false;  // since check_silence() last looked: nobody reads a clock for each frame
    Clock::time_point heard;
    std::vector<Record> records;
    bool asked = false;          // for a status that has not come yet
    int waits_for = -1;          // as its last status said
    Clock::time_point answered;  // when that came
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
  std::string told_;                             // to peers, of the failure that has ended all
  std::optional<Clock::time_point> lost_since_;  // the first who had not closed
  Board own_board_;
  bool boards_are_late_ = false;
};

}  // namespace ringreduce

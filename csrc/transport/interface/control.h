// What ranks know of each other beside their messages: how the group is, what each rank called, whom it waits
// for, and the agreement on survivors.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/interface/backoff.h"
#include "transport/interface/board.h"
#include "transport/interface/fate.h"
#include "transport/interface/record.h"

namespace ringreduce {

class ControlPlane {
 public:
  ControlPlane() = default;
  virtual ~ControlPlane() = default;
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;

  // The state of the group.
  Fate& fate() { return *fate_; }
  const Fate& fate() const { return *fate_; }
  // Throws if the group is over, even if a peer has ended it. Two loads, for the beginning of every call.
  virtual void check() { fate_->check(); }
  // Throws InvalidArgument if no thread but this one could continue what begins here.
  virtual void check_background() {}
  // Ends every rank's waits, including this rank's, with this failure or an earlier one. (If the group is
  // closed here, the other ranks are told.) What this rank has lent may change afterwards.
  virtual void abort(const Failure& failure) = 0;

  // The latest calls of every rank, for error messages; this rank's calls are written here.
  virtual void record(const Record& record) = 0;
  virtual std::vector<Record> records(int of_rank) = 0;
  // The same without a question to other ranks, which would take time.
  virtual std::vector<Record> known_records(int of_rank) { return records(of_rank); }
  // The rank that a rank has lately waited for, or -1 if none in particular; nullopt if it does not wait: it
  // computes, is stopped, or has not come yet.
  virtual std::optional<int> waits_for(int of_rank, Clock::duration lately) const = 0;

  // For the agreement on survivors: shows this rank's board to all others, and returns what a rank showed
  // last; empty if it has shown nothing yet. A reader sees a whole board, as it was at one moment.
  virtual void show(const Board& board) = 0;
  virtual Board board(int of_rank) = 0;
  // Whether a peer can send nothing more, because it is dead or has closed.
  virtual bool is_gone(int peer) = 0;
  // Whether it is certain that a peer that is gone has ended here. Otherwise it may live on beyond a cut.
  virtual bool has_ended(int peer) { return is_gone(peer); }
  // How long after that the peer's last message may still arrive.
  virtual Clock::duration last_message_takes() const { return {}; }
  // Lets a little time pass, in which boards may change, especially that of `waiting_for`.
  virtual void await_boards(int waiting_for) = 0;

  // How other hosts reach this rank, in words; empty if it has no network connections.
  virtual std::string way() const { return ""; }
  // Whether a peer has said that it sends nothing more; earlier messages can still be read.
  virtual bool closed(int peer) const = 0;

  // Tells peers that this rank sends nothing more.
  virtual void close() = 0;
  // Forgets the group without telling the peers: for the child of a fork.
  virtual void disown() { disowned_ = true; }

 protected:
  // Gives the parts of a composed transport one fate.
  void share_fate(ControlPlane& part) { part.fate_ = fate_; }
  bool disowned_ = false;

 private:
  std::shared_ptr<Fate> fate_ = std::make_shared<Fate>();
};

}  // namespace ringreduce

// Moves bytes to a peer, or lets the peer read them. No algorithm lives here: a transport knows messages,
// lanes and peers, but no schedules, chunks or reductions.
//
// A *lane* is an independent stream of messages to and from every peer, in order per peer. Nothing blocks: a
// function that cannot do its work now says so, and the caller tries again after pause(), the only place
// where time passes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/interface/board.h"
#include "transport/interface/fate.h"
#include "transport/interface/record.h"

namespace ringreduce {

using Clock = std::chrono::steady_clock;
using Peers = std::span<const int>;

// Collects one blob from every rank of a group, in rank order, on every rank. Bootstrap consists of this
// alone.
using Exchange = std::function<std::vector<std::string>(const std::string&)>;

// A message that arrived from a peer. Readable until release().
struct Message {
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::uint64_t contract = 0;  // what the sender takes this collective to be
  bool delivered = false;      // the sender has written the bytes where we granted it; data is null
  std::byte* grant = nullptr;  // where the sender lets us write its next value of the same chunks, or null
};

// The progress of one wait: spinning first, then yielding the core, then sleeping.
struct Backoff {
  Backoff() = default;
  explicit Backoff(Clock::duration longest_sleep) : longest_sleep(longest_sleep) {}
  Backoff(const Backoff&) = delete;
  Backoff& operator=(const Backoff&) = delete;
  ~Backoff() { reset(); }

  // Something moved: the next wait starts over.
  void reset() {
    if (rounds == 0) return;
    if (sleepers) sleepers->fetch_sub(1, std::memory_order_relaxed);
    sleepers = nullptr;
    rounds = yields = 0;
    closed_peer = -1;
    since = Clock::time_point();
    away = Clock::duration();
  }

  // A peer that is waited for has closed. The wait fails the second time, because the peer may have sent
  // before it closed, and the wait looks at its messages once more in between. `name` and `own_name` are the
  // names of the two ranks.
  void found_closed(int peer, int name, int own_name) {
    if (closed_peer == peer) {
      const std::string who = "rank " + std::to_string(name);
      throw Failure(
          Cause::peer_lost, name,
          who + " closed its communicator while rank " + std::to_string(own_name) + " was waiting for it");
    }
    closed_peer = peer;
  }

  std::uint32_t rounds = 0;
  std::uint32_t yields = 0;
  std::uint32_t armed = 0;                         // the doorbell's value before the last look
  std::atomic<std::uint32_t>* sleepers = nullptr;  // the count that asks peers to ring, while we are counted
  int closed_peer = -1;                            // see found_closed()
  Clock::time_point since;
  Clock::time_point checked;
  Clock::duration away{};                                         // spent in pauses that gave the core away
  Clock::duration longest_sleep = std::chrono::milliseconds(20);  // until the caller looks again
};

// The ranks' reports to each other when they met, by rank; empty if all are on one host, or in one process.
struct Told {
  std::uint64_t group = 0;          // a number that no other group has
  std::vector<int> machine;         // the number of each rank's host
  std::vector<std::uint64_t> word;  // what their engines must agree on

  Told among(const std::vector<int>& members) const {
    Told theirs;
    for (const int member : members) {
      if (!machine.empty()) theirs.machine.push_back(machine[member]);
      if (!word.empty()) theirs.word.push_back(word[member]);
    }
    return theirs;
  }
};

class Transport {
 public:
  Transport(int rank, int world, bool queues = false) : rank(rank), world(world), queues_(queues) {}
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  const int rank;
  const int world;
  Told told;

  static constexpr int collective_lanes = 4;
  // Messages between two ranks use one lane for messages that wait until they are asked for, and one for the
  // bodies of large messages. The latter are always read, so nothing can get stuck behind the former.
  static constexpr int point_to_point_lane = collective_lanes;
  static constexpr int body_lane = point_to_point_lane + 1;
  static constexpr int lanes = body_lane + 1;

  virtual const char* name() const = 0;
  // How other hosts reach this rank, in words; empty if it has no network connections.
  virtual std::string way() const { return ""; }
  // The number of each rank's host, for algorithms of two levels. Empty: all ranks share a host, or none do.
  virtual std::vector<int> hosts() const { return {}; }
  // Whether some ranks are on other hosts, so that measuring the links to them pays off.
  virtual bool distant() const { return false; }
  // Whether there are more ranks than cores; the same on all ranks.
  virtual bool oversubscribed() const = 0;
  // The cores that more ranks of one host share; 0 if there are enough, or if that is unknown.
  virtual int shared_cores() const { return 0; }
  // The bytes of staged messages that one lane of the collectives holds; a round's messages must fit. The
  // lane of point-to-point messages holds a quarter of this, and the lane of their bodies three quarters.
  virtual std::size_t capacity() const = 0;
  // The bytes of the longest message that leaves before its receiver has answered, if the transport knows it
  // and longer ones take much longer; otherwise 0. The same on all ranks.
  virtual std::size_t longest_eager() const { return 0; }
  // Bytes of memory that this rank holds for the group.
  virtual std::size_t footprint() const = 0;

  // Sends a small message by copy, in one step: false if there is no space now.
  virtual bool send(int lane, Peers peers, const void* data, std::size_t bytes, std::uint64_t contract) = 0;
  // Sends by copy, in two steps: reserve() returns space for one message to all of `peers`, or null if there
  // is none now; fill it, then post.
  virtual std::byte* reserve(int lane, Peers peers, std::size_t bytes) = 0;
  virtual void post(int lane, Peers peers, const std::byte* reserved, std::size_t bytes,
                    std::uint64_t contract) = 0;

  // The peer that leaves no space for a message to `peers`: one of them, or one that has yet to read
  // something older. Without peers: the one that the lane is not flushed() for, or -1.
  virtual int in_the_way(int lane, Peers peers) = 0;

  // Sends by reference, if the peers can reach this memory: they read it in place, and it must not change
  // until consumed(). `data` is null if the bytes have already been written where the peers granted it.
  // `grant`, if not null, is where a peer may write its next value of the same chunks.
  virtual bool reachable(const void* data, std::size_t bytes) = 0;
  // Whether any memory can be lent to these peers and is sent in place.
  virtual bool reachable_by(Peers) const { return false; }
  virtual bool lend(int lane, Peers peers, const std::byte* data, std::size_t bytes, std::uint64_t contract,
                    std::byte* grant) = 0;
  // Around every use of what peers have lent or granted, once it has arrived; see Access. begin_access()
  // throws what check() throws. abort() returns only after the peers' accesses have ended.
  virtual void begin_access() = 0;
  virtual void end_access() = 0;

  // Whether everything sent by copy on a lane has left this rank, so that it may compute. Only useful if
  // queues(), which is cheaper to ask.
  bool queues() const { return queues_; }
  virtual bool flushed(int) { return true; }

  // The number of messages sent to a peer so far, and whether the peer has finished with the first `sent` of
  // them.
  virtual std::uint32_t sent(int lane, int peer) const = 0;
  virtual bool consumed(int lane, int peer, std::uint32_t sent) = 0;

  // The oldest message from a peer, if any; the same one until release().
  virtual bool poll(int lane, int peer, Message& message) = 0;
  virtual void release(int lane, int peer) = 0;
  // Lets the next message from a peer, if it has this length and contract, arrive directly in its place: it
  // is then `delivered`. The memory may be written until the message has come, or the transport is aborted.
  // For transports that queue.
  virtual void place(int, int, std::byte*, std::size_t, std::uint64_t) {}

  // Messages of at most most_told bytes that every other rank reads, in one place instead of one for each
  // reader, and without acknowledgements. All ranks tell in turn: a rank tells again once it has heard all
  // others. What it has heard stays readable until then, and until the next time.
  static constexpr std::size_t most_told = 40;
  virtual bool tells() const { return false; }
  virtual void tell(const void*, std::size_t, std::uint64_t) {}
  virtual bool hear(int, Message&) { return false; }
  // Writes to `places` where the peers' messages lie, from peers[first] on, as long as each peer has told one
  // of this length and contract. Returns the index of the first that has not, or that is negative (no peer).
  virtual int hear(Peers, int first, std::size_t, std::uint64_t, const void**) { return first; }

  // A collective call begins to send on a lane. Whatever else is on its way there belongs to calls in which
  // this rank has done its part, so it will be read.
  virtual void begin_call(int) {}

  // Says whether large messages use a lane now. Only then is it worth measuring how far the peers are.
  virtual void sense(int, bool) {}
  // Whether some of these peers read this core's latest writes faster from memory than from its cache, so
  // that large messages to them should be written past the cache.
  virtual bool far(Peers) const { return false; }

  // Whether a peer seems to share this rank's core, so that it runs only when this rank gives the core away.
  virtual bool shares_core(int) const { return false; }

  // Lets time pass when nothing can be done; `waiting_for` is the peer that holds us up. Returns true when
  // the wait is so long that the caller should check its own deadline. Throws Failure if a peer is dead, or
  // has closed although it is waited for, whatever check() throws, and Disagreement if a peer made another
  // call.
  virtual bool pause(Backoff& backoff, int waiting_for) = 0;
  // Ends the sleeps of this rank's other threads in pause(), because one of them may have got what it waits
  // for.
  virtual void wake() = 0;
  // Whether a peer has said that it sends nothing more; earlier messages can still be read.
  virtual bool closed(int peer) const = 0;

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

  // What every rank called lately, for error messages; this rank's calls are written here.
  virtual void record(const Record& record) = 0;
  virtual std::vector<Record> records(int of_rank) = 0;
  // The same without asking anybody, which takes time.
  virtual std::vector<Record> known_records(int of_rank) { return records(of_rank); }
  // The rank that a rank has lately waited for, or -1 if none in particular; nullopt if it does not wait: it
  // computes, is stopped, or has not come yet.
  virtual std::optional<int> waits_for(int of_rank, Clock::duration lately) const = 0;

  // For the agreement on survivors: shows this rank's board to all others, and returns what a rank showed
  // last; empty if it has shown nothing yet. A reader sees a whole board, as it was at one moment.
  virtual void show(const Board& board) = 0;
  virtual Board board(int of_rank) = 0;
  // Whether a peer can say nothing more: it is dead, or has closed.
  virtual bool is_gone(int peer) = 0;
  // Whether it is certain that a peer that is gone has ended here. Otherwise it may live on beyond a cut.
  virtual bool has_ended(int peer) { return is_gone(peer); }
  // How long after that the peer's last word may still be on its way.
  virtual Clock::duration last_words_take() const { return {}; }
  // Lets a little time pass, in which boards may change, especially that of `waiting_for`.
  virtual void await_boards(int waiting_for) = 0;

  // A new transport of the same kind among some of the ranks, all of which call this with the same members.
  // It exchanges exactly exchanges() times, for any members.
  virtual std::unique_ptr<Transport> among(int rank, int world, const Exchange& exchange) = 0;
  virtual int exchanges() const { return 2; }

  // Tells peers that this rank sends nothing more.
  virtual void close() = 0;
  // Forgets the group without telling the peers: for the child of a fork.
  virtual void disown() { disowned_ = true; }

 protected:
  // Gives the parts of a composed transport one fate.
  void share_fate(Transport& part) { part.fate_ = fate_; }
  bool disowned_ = false;

 private:
  const bool queues_;
  std::shared_ptr<Fate> fate_ = std::make_shared<Fate>();
};

// A peer whose call fails keeps what it has lent until this object is gone.
class Access {
 public:
  explicit Access(Transport& transport) : transport_(transport) { transport_.begin_access(); }
  ~Access() { transport_.end_access(); }
  Access(const Access&) = delete;
  Access& operator=(const Access&) = delete;

 private:
  Transport& transport_;
};

}  // namespace ringreduce

// Moves bytes to a peer, or lets the peer read them. No algorithm lives here: a transport knows messages,
// lanes and peers, nothing of schedules, chunks or reductions.
//
// A *lane* is an independent stream of messages to and from every peer, in order per peer. Nothing blocks:
// what cannot be done now says so, and the caller comes back after pause(), the only place where time passes.
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

// Collects one blob from every rank of a group, in rank order, on every rank. Bootstrap is this one idea.
using Exchange = std::function<std::vector<std::string>(const std::string&)>;

// What arrived from a peer. Readable until release().
struct Message {
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::uint64_t contract = 0;  // what the sender believes this collective to be
  bool delivered = false;      // the sender has written the bytes where we granted, and data is null
  std::byte* grant = nullptr;  // the sender lets us write its next value of the same chunks here, or null
};

// How long one wait has lasted: spinning first, then giving the core away, then sleeping.
struct Backoff {
  Backoff() = default;
  explicit Backoff(Clock::duration longest_sleep) : longest_sleep(longest_sleep) {}
  Backoff(const Backoff&) = delete;
  Backoff& operator=(const Backoff&) = delete;
  ~Backoff() { reset(); }

  // Something moved: the next wait begins at the beginning.
  void reset() {
    if (rounds == 0) return;
    if (sleepers) sleepers->fetch_sub(1, std::memory_order_relaxed);
    sleepers = nullptr;
    rounds = yields = 0;
    closed_peer = -1;
    since = Clock::time_point();
  }

  // A peer that is waited for has closed. That fails the wait the second time: it may have sent before, and a
  // last look at its messages comes between the two. `name` and `own_name` are what the two ranks are called.
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
  std::atomic<std::uint32_t>* sleepers = nullptr;  // the count that asks peers to ring, while we are in it
  int closed_peer = -1;                            // see found_closed()
  Clock::time_point since;
  Clock::time_point checked;
  Clock::duration longest_sleep = std::chrono::milliseconds(20);  // until the caller gets to look again
};

// What ranks told each other when they met, by rank; empty where all are on one host, or in one process.
struct Told {
  std::vector<int> machine;         // a number for each host
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
  // Messages between two ranks: one lane for those that wait until they are asked for, and one for the bodies
  // of large messages, which are always read on, so that nothing can get stuck behind the former.
  static constexpr int point_to_point_lane = collective_lanes;
  static constexpr int body_lane = point_to_point_lane + 1;
  static constexpr int lanes = body_lane + 1;

  virtual const char* name() const = 0;
  // How other hosts reach this rank, in words; empty where no network comes in.
  virtual std::string way() const { return ""; }
  // Which ranks share a host, by any number for each: for algorithms of two levels. Empty: all do, or none.
  virtual std::vector<int> hosts() const { return {}; }
  // Whether some ranks are on other hosts, so that it is worth while to measure the way to them.
  virtual bool distant() const { return false; }
  // Whether there are more ranks than cores; all ranks say the same.
  virtual bool oversubscribed() const = 0;
  // The bytes of staged messages that one lane of the collectives can hold; a round's messages must fit. The
  // lane of point-to-point messages holds a quarter of that, the one of their bodies three.
  virtual std::size_t capacity() const = 0;
  // Bytes of memory this rank holds for the group.
  virtual std::size_t footprint() const = 0;

  // Sending by copy, in one go, for small messages: false if there is no room now.
  virtual bool send(int lane, Peers peers, const void* data, std::size_t bytes, std::uint64_t contract) = 0;
  // Sending by copy, in two steps: room for one message to all of `peers`, or null if there is none now; fill
  // it, then post.
  virtual std::byte* reserve(int lane, Peers peers, std::size_t bytes) = 0;
  virtual void post(int lane, Peers peers, const std::byte* reserved, std::size_t bytes,
                    std::uint64_t contract) = 0;

  // Which peer it is that leaves no room for a message to `peers`: one of them, or one that has yet to read
  // something older. Without peers: which one the lane is not flushed() for, or -1.
  virtual int in_the_way(int lane, Peers peers) = 0;

  // Sending by reference, where the peers can reach this memory: they read it in place, and it must not
  // change until consumed(). `data` is null where the bytes have already been written where the peers
  // granted. `grant`, if not null, is where a peer may write its next value of the same chunks.
  virtual bool reachable(const void* data, std::size_t bytes) = 0;
  // Whether any memory can be lent to these peers: it is sent from where it is.
  virtual bool reachable_by(Peers) const { return false; }
  virtual bool lend(int lane, Peers peers, const std::byte* data, std::size_t bytes, std::uint64_t contract,
                    std::byte* grant) = 0;

  // Whether everything that was sent by copy on a lane is out of this rank's hands, so that it may go and
  // compute. Only where queues(), which costs less to ask.
  bool queues() const { return queues_; }
  virtual bool flushed(int) { return true; }

  // The number of messages sent to a peer so far, and whether the peer is done with the first `sent` of them.
  virtual std::uint32_t sent(int lane, int peer) const = 0;
  virtual bool consumed(int lane, int peer, std::uint32_t sent) = 0;

  // The oldest message from a peer, if there is one; the same until release().
  virtual bool poll(int lane, int peer, Message& message) = 0;
  virtual void release(int lane, int peer) = 0;
  // Lets the next message from a peer, if it is of this length and contract, come straight to where it is
  // wanted: it is then `delivered`. Until it has come, or the transport is aborted, that memory is written
  // to. For transports that queue.
  virtual void place(int, int, std::byte*, std::size_t, std::uint64_t) {}

  // Says whether large messages travel on a lane now: only then is it worth finding out how far the peers
  // are.
  virtual void sense(int, bool) {}
  // Whether peers read what this core wrote last faster from memory than from this core's cache, so that
  // large messages are better written past it.
  virtual bool far() const { return false; }

  // Whether a peer seems to share this rank's core, so that it moves only when this rank gives the core away.
  virtual bool shares_core(int) const { return false; }

  // Lets time pass because nothing could be done; `waiting_for` is the peer that holds us up. True when the
  // wait has become so long that the caller should look at its own deadline. Throws Failure when a peer is
  // dead or has closed although it is waited for, what check() does, and Disagreement when a peer called
  // something else.
  virtual bool pause(Backoff& backoff, int waiting_for) = 0;
  // Ends the sleeps of this rank's other threads in pause(): one of them may have got what it waits for.
  virtual void wake() = 0;
  // Whether a peer has said that it sends nothing more; what it had sent before can still be read.
  virtual bool closed(int peer) const = 0;

  // How the group stands.
  Fate& fate() { return *fate_; }
  const Fate& fate() const { return *fate_; }
  // Throws if the group is over, also if a peer has ended it: two loads, for the beginning of every call.
  virtual void check() { fate_->check(); }
  // Throws InvalidArgument where no other thread than this one could go on with what is begun here.
  virtual void check_background() {}
  // Makes every rank's waits, this one's too, end with this failure, or with one that came before. (Of a
  // group that is closed here, the other ranks are told.)
  virtual void abort(const Failure& failure) = 0;

  // What every rank called lately, this one's written here; for error messages.
  virtual void record(const Record& record) = 0;
  virtual std::vector<Record> records(int of_rank) = 0;
  // Whom a rank has lately waited for, or -1 where it waits for nobody in particular; nothing where it does
  // not wait: it computes, or is stopped, or has not come yet.
  virtual std::optional<int> waits_for(int of_rank, Clock::duration lately) const = 0;

  // For the agreement on survivors: what this rank has to say, shown to all others, and what one of them (or
  // this one) showed last; empty where it has shown nothing yet. A board is shown whole: whoever reads it
  // sees it as it was at one moment.
  virtual void show(const Board& board) = 0;
  virtual Board board(int of_rank) = 0;
  // Whether a peer can say nothing more: it is dead, or has closed.
  virtual bool is_gone(int peer) = 0;
  // How long after that a last word of the peer's may still be on its way.
  virtual Clock::duration last_words_take() const { return {}; }
  // Lets a little time pass, in which boards may change, above all that of `waiting_for`.
  virtual void await_boards(int waiting_for) = 0;

  // A new transport of the same kind among some of the ranks, all of which call this with the same members.
  // It exchanges exactly exchanges() times, whoever the members are.
  virtual std::unique_ptr<Transport> among(int rank, int world, const Exchange& exchange) = 0;
  virtual int exchanges() const { return 2; }

  // Tells peers that this rank sends nothing more.
  virtual void close() = 0;
  // Forgets the group without a word to the peers: for the child of a fork.
  virtual void disown() { disowned_ = true; }

 protected:
  // One fate for the parts of a transport that is made of several.
  void share_fate(Transport& part) { part.fate_ = fate_; }
  bool disowned_ = false;

 private:
  const bool queues_;
  std::shared_ptr<Fate> fate_ = std::make_shared<Fate>();
};

}  // namespace ringreduce

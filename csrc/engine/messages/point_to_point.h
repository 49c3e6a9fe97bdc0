// Messages between two ranks, beside the collectives. Any waiting thread moves them on.
//
// A small message is sent whole and at once if the lane has space for it. It stays in the lane until a
// receive asks for it or for one behind it; in the latter case it is put aside, into the receiver's memory.
// For a larger message only an offer is sent. Its body stays with the sender until the receive is ready. It
// then goes through the other lane directly to its destination: the receiver reads it in place if it can
// reach it, otherwise it comes in slices. Both ends wait for everything in that other lane, so it keeps
// moving.
//
// A sender must not continue before its offered body is gone. A receiver that has waited for a while for
// something behind an offer therefore fetches the body, and puts it aside too.
#pragma once

#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/messages/matching.h"
#include "reduce/copy_to_reader.h"
#include "transport/interface/count.h"

namespace ringreduce {

class PointToPoint {
 public:
  explicit PointToPoint(Transport& transport);

  // Makes a send that need not wait; returns false if it must. Throws Failure if it does not match its
  // receive.
  bool send_at_once(const Transfer& send);
  RequestPointer enqueue(const Transfer& transfer, Arrays arrays = {});
  // Moves whatever can move; returns true if anything did.
  bool advance();
  // For long waits: fetches bodies that may block others, and throws Failure if something waits only for
  // ranks that have closed.
  void look_around();
  // Whether bodies that no call waits for are arriving here.
  bool fetching() const { return fetching_.load(std::memory_order_relaxed) > 0; }
  // Lists the messages from a rank (or any_source) that no receive asked for; empty if there are none.
  std::string not_asked_for(int source) const;
  // Ends every request with this error.
  void drop(const std::exception_ptr& problem);
  // Counts one that something else carries.
  void count(const Transfer& transfer) {
    const std::lock_guard lock(mutex_);
    note_begun(transfer);
  }
  // Sends and receives that have begun.
  const CallsAndBytes& sends() const { return sends_; }
  const CallsAndBytes& receives() const { return receives_; }

 private:
  using Requests = std::list<RequestPointer>;
  struct Peer {
    CopyToReader copy_out;           // of messages to it
    CopyToReader copy_in;            // of bodies from it, to where it may have read others in place
    Requests sends;                  // that it does not know of yet
    Requests offered;                // whose bodies it is not ready for
    Requests outgoing;               // whose bodies it is ready for
    Requests incoming;               // receives that are ready for a body, in the order in which they said so
    std::list<std::uint32_t> ready;  // bodies that we are ready for, but could not announce for lack of space
    std::uint32_t offers = 0;        // made so far
  };

  void note_begun(const Transfer& t) { (t.sends ? sends_ : receives_).add(t.bytes()); }
  bool advance_all();
  bool advance(int peer);
  bool begin_sends(int peer);
  bool send_whole(const Transfer& send);
  bool offer(Request& request);
  void send_to_self(const Transfer& send);
  bool say_ready(int peer);
  bool send_body(int peer);
  bool read_bodies(int peer);
  bool read_message(int peer);
  void deliver(const RequestPointer& receive, const Aside& message, const std::byte* data);
  void await_body(const RequestPointer& request, int source, std::uint32_t number);
  void fetch_bodies();
  void finish(Request& request, std::exception_ptr problem = nullptr);
  int closed_but_needed() const;

  Transport& transport_;
  const std::size_t whole_;  // the longest message in bytes that is sent whole
  const std::size_t slice_;  // the most bytes of a body that go through the lane at once
  mutable std::mutex mutex_;
  Matching matching_;
  std::vector<Peer> peers_;
  CallsAndBytes sends_, receives_;
  int requests_ = 0;  // running
  int first_ = 0;     // the peer that was served first the last time
  std::atomic<int> fetching_{0};
};

}  // namespace ringreduce

// Messages between two ranks, beside the collectives, moved on by whichever thread waits.
//
// A small message is sent at once, whole, as long as the lane has room for it. It stays in the lane until a
// receive asks for it, or for one behind it: then it is put aside, into memory of the receiver. A larger one
// is only offered there. Its body stays with the sender until the receive is there, and then goes through the
// other lane straight to where it belongs: read in place where the receiver can reach it, else in slices. So
// whatever is in that other lane is waited for at both ends, and moves on.
//
// A sender may not go on before it is rid of what it has offered. So a receiver that has waited for a while
// for something behind an offer fetches the body, and puts it aside too.
#pragma once

#include <list>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/messages/matching.h"

namespace ringreduce {

class PointToPoint {
 public:
  explicit PointToPoint(Transport& transport);

  // Does a send that need not wait; false if it must. Throws Failure where it does not fit its receive.
  bool send_at_once(const Transfer& send);
  RequestPointer enqueue(const Transfer& transfer);
  // Moves whatever can move; true if anything did.
  bool advance();
  // For waits that have become long: fetches bodies that may be in the way, and throws Failure if something
  // waits for nobody but ranks that have closed.
  void look_around();
  // Whether bodies are on the way here that no call waits for.
  bool fetching() const { return fetching_.load(std::memory_order_relaxed) > 0; }
  // Says what has come from a rank (or any_source) and was not asked for; empty if there is nothing.
  std::string not_asked_for(int source) const;
  // Ends every request with this problem.
  void drop(const std::exception_ptr& problem);

 private:
  using Requests = std::list<RequestPointer>;
  struct Peer {
    Requests sends;                  // of which it does not know yet
    Requests offered;                // whose body it is not ready for
    Requests outgoing;               // whose body it is ready for
    Requests incoming;               // receives for whose body we are ready, in the order of saying so
    std::list<std::uint32_t> ready;  // bodies we are ready for, but had no room to say so
    std::uint32_t offers = 0;        // made so far
  };

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
  void stage(std::byte* to, const std::byte* from, std::size_t bytes) const;
  int closed_but_needed() const;

  Transport& transport_;
  const std::size_t whole_;  // bytes up to which a message is sent whole
  const std::size_t slice_;  // and the most of a body that goes through the lane at once
  mutable std::mutex mutex_;
  Matching matching_;
  std::vector<Peer> peers_;
  int requests_ = 0;  // under way
  int first_ = 0;     // the peer that was looked at first the last time
  std::atomic<int> fetching_{0};
};

}  // namespace ringreduce

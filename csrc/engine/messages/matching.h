// Matches messages to receives, by MPI's rule: a receive takes the oldest message that fits it, a message
// goes to the earliest receive that it fits, and messages of one tag between two ranks keep their order.
// Independent of transports and threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "engine/messages/transfer.h"

namespace ringreduce {

// A running transfer. `done` is written last, and may be read by any thread.
struct Request {
  explicit Request(const Transfer& transfer, Arrays arrays = {})
      : transfer(transfer), arrays(std::move(arrays)), peer(transfer.peer) {}

  bool failed() const { return done.load(std::memory_order_acquire) && problem; }

  const Transfer transfer;
  Arrays arrays;
  std::atomic<int> peer;  // the other end; any_source until a message has arrived
  std::atomic<bool> done{false};
  std::exception_ptr problem;
  // For a message with a body: its number among those from the same sender to the same receiver, how much has
  // been sent, and the number of the last part in the lane.
  std::uint32_t number = 0;
  std::size_t slice = 0;  // bytes sent at once
  std::size_t moved = 0;
  std::uint32_t last_part = 0;
  bool lends = false;
  // For a body that was put aside: its memory, and the receive that has asked for it since.
  std::unique_ptr<std::byte[]> memory;
  std::shared_ptr<Request> heir;
};
using RequestPointer = std::shared_ptr<Request>;

// A message that no receive has asked for yet.
struct Aside {
  int source = 0;
  Envelope envelope;
  std::unique_ptr<std::byte[]> data;  // if it has no body
  RequestPointer body;                // null while the body is with its sender
  Clock::time_point since;            // when the body was offered
};

class Matching {
 public:
  explicit Matching(int world) : named_(world) {}

  // Adds a receive that found no message yet.
  void post(RequestPointer receive);
  // Removes and returns the earliest receive that fits a message from `source`; null if there is none.
  RequestPointer take_receive(int source, int tag);
  // Whether a receive of any tag waits for a message from this rank.
  bool awaits(int source) const { return any_ > 0 || named_[source] > 0; }
  // Whether some receive names this source (which may be any_source).
  bool names(int source) const { return (source == any_source ? any_ : named_[source]) > 0; }

  // Keeps a message that fits no receive yet, to reach those behind it.
  void put_aside(Aside message) { asides_.push_back(std::move(message)); }
  // Removes and returns the oldest kept message that fits the receive.
  std::optional<Aside> take_aside(int source, int tag);
  std::list<Aside>& asides() { return asides_; }
  const std::list<Aside>& asides() const { return asides_; }

  // Forgets everything; returns the receives that were waiting.
  std::list<RequestPointer> clear();

 private:
  static bool fits(const Transfer& receive, int source, int tag) {
    return receive.tag == tag && (receive.peer == any_source || receive.peer == source);
  }
  int& waiting(const Transfer& receive) { return receive.peer == any_source ? any_ : named_[receive.peer]; }

  std::list<RequestPointer> receives_;  // in the order of the calls
  std::list<Aside> asides_;             // in the order of arrival
  std::vector<int> named_;              // how many receives name each rank
  int any_ = 0;                         // and how many accept any
};

}  // namespace ringreduce

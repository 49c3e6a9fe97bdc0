// Which message goes to which receive, by MPI's rule: a receive takes the oldest message that fits it, a
// message goes to the earliest receive that it fits, and between two ranks messages of one tag keep their
// order. Knows of no transport and no thread.
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

// A transfer under way. `done` is written last, and may be read by any thread.
struct Request {
  explicit Request(const Transfer& transfer) : transfer(transfer), peer(transfer.peer) {}

  bool failed() const { return done.load(std::memory_order_acquire) && problem; }

  const Transfer transfer;
  std::atomic<int> peer;  // the other end: any_source until a message has come
  std::atomic<bool> done{false};
  std::exception_ptr problem;
  // Of a message that has a body: its number among those from the same sender to the same receiver, how much
  // of it has gone, and the number of the last part in the lane.
  std::uint32_t number = 0;
  std::size_t slice = 0;  // bytes that go at once
  std::size_t moved = 0;
  std::uint32_t last_part = 0;
  bool lends = false;
  // Of a body that is put aside: where it is, and the receive that came for it meanwhile.
  std::unique_ptr<std::byte[]> memory;
  std::shared_ptr<Request> heir;
};
using RequestPointer = std::shared_ptr<Request>;

// A message that somebody will perhaps ask for.
struct Aside {
  int source = 0;
  Envelope envelope;
  std::unique_ptr<std::byte[]> data;  // of one without a body
  RequestPointer body;                // null while it is with its sender
  Clock::time_point since;            // when that was offered
};

class Matching {
 public:
  explicit Matching(int world) : named_(world) {}

  // A receive that found no message yet.
  void post(RequestPointer receive);
  // The earliest receive that a message from `source` fits, which waits no more then; null if there is none.
  RequestPointer take_receive(int source, int tag);
  // Whether some receive waits for a message from there, of whatever tag.
  bool awaits(int source) const { return any_ > 0 || named_[source] > 0; }
  // Whether some receive names this source (which may be any_source).
  bool names(int source) const { return (source == any_source ? any_ : named_[source]) > 0; }

  // A message that fits no receive yet, but that others behind it are waited for.
  void put_aside(Aside message) { asides_.push_back(std::move(message)); }
  // The oldest of them that fits the receive.
  std::optional<Aside> take_aside(int source, int tag);
  std::list<Aside>& asides() { return asides_; }
  const std::list<Aside>& asides() const { return asides_; }

  // Forgets everything; returns the receives that waited.
  std::list<RequestPointer> clear();

 private:
  static bool fits(const Transfer& receive, int source, int tag) {
    return receive.tag == tag && (receive.peer == any_source || receive.peer == source);
  }
  int& waiting(const Transfer& receive) { return receive.peer == any_source ? any_ : named_[receive.peer]; }

  std::list<RequestPointer> receives_;  // in the order of the calls
  std::list<Aside> asides_;             // in the order of arrival
  std::vector<int> named_;              // of the receives: how many name each rank
  int any_ = 0;                         // and how many none
};

}  // namespace ringreduce

// Messages between ranks, by copy. A *lane* is an independent stream of messages to and from every peer, in
// order per peer. Nothing blocks: a function that cannot do its work now says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace ringreduce {

// Ranks that the caller lists. Not a std::span, whose layout differs between standard libraries: the user's
// compiler compiles the transport for MPI, and another one has compiled the engine.
class Peers {
 public:
  constexpr Peers() = default;
  constexpr Peers(const int* first, std::size_t count) : first_(first), count_(count) {}
  template <typename List>
  constexpr Peers(const List& list) : Peers(std::data(list), std::size(list)) {}

  constexpr const int* begin() const { return first_; }
  constexpr const int* end() const { return first_ + count_; }
  constexpr std::size_t size() const { return count_; }
  constexpr bool empty() const { return count_ == 0; }
  constexpr int operator[](std::size_t i) const { return first_[i]; }
  constexpr int front() const { return first_[0]; }

 private:
  const int* first_ = nullptr;
  std::size_t count_ = 0;
};

// Whether the owner of memory that it lends wants the reader to take its lines over (see LineTaker): not at
// all, in calls whose buffers stay in the caches of cores that share one, or in longer ones, too. No owner
// sends the last, which compares as more than any wish.
enum class Take : std::uint8_t { none, in_short_calls, in_long_calls, never_asked };

// A message that arrived from a peer. Readable until release().
struct Message {
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::uint64_t contract = 0;  // what the sender takes this collective to be
  bool delivered = false;      // the sender has written the bytes where we granted it; data is null
  std::byte* grant = nullptr;  // where the sender lets us write its next value of the same chunks, or null
  Take take = Take::none;
};

// What is known about all messages of a call on a lane before it begins.
enum class Traffic : std::uint8_t {
  any,
  // A peer that can reach the lane's memory may overwrite a staged message that only it receives with the
  // message that it sends back. The lane keeps such messages until the next begin_slice() or begin_call(), so
  // it must hold all of a slice.
  answered,
  inbound,   // this rank sends nothing, so its peers may be calls ahead
  outbound,  // this rank receives nothing, so it may be calls ahead
};

class MessagePlane {
 public:
  virtual ~MessagePlane() = default;

  static constexpr int collective_lanes = 4;
  // Messages between two ranks use one lane for messages that wait until they are asked for, and one for the
  // bodies of large messages. The latter are always read, so nothing can get stuck behind the former.
  static constexpr int point_to_point_lane = collective_lanes;
  static constexpr int body_lane = point_to_point_lane + 1;
  static constexpr int lanes = body_lane + 1;

  // Sends a small message by copy, in one step: false if there is no space now.
  virtual bool send(int lane, Peers peers, const void* data, std::size_t bytes, std::uint64_t contract) = 0;
  // Sends by copy, in two steps: reserve() returns space for one message to all of `peers`, or null if there
  // is none now; fill it, then post.
  virtual std::byte* reserve(int lane, Peers peers, std::size_t bytes) = 0;
  virtual void post(int lane, Peers peers, const std::byte* reserved, std::size_t bytes,
                    std::uint64_t contract) = 0;
  // This rank waits, and its next message on a lane probably has this length.
  virtual void expect_to_send(int, std::size_t) {}

  // The peer that leaves no space for a message to `peers`: one of them, or one that has yet to read
  // something older. Without peers: the one that the lane is not flushed() for, or -1.
  virtual int in_the_way(int lane, Peers peers) = 0;

  // Whether everything sent by copy on a lane has left this rank, so that it may compute. Only useful if
  // the transport queues.
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

  // Broadcast slots: each rank has one, which all others read, instead of a message for each reader, and
  // without acknowledgements. All ranks take turns: a rank fills its slot again once it has read all others'.
  // What it has read stays readable until then, and until the next time.
  static constexpr std::size_t broadcast_slot_bytes = 40;
  virtual void fill_broadcast_slot(const void*, std::size_t, std::uint64_t) {}
  virtual bool read_broadcast_slot(int, Message&) { return false; }
  // Writes to `places` where the peers' messages lie, from peers[first] on, as long as each peer's slot has
  // one of this length and contract. Returns the index of the first that has not, or that is negative (no
  // peer).
  virtual int read_broadcast_slots(Peers, int first, std::size_t, std::uint64_t, const void**) {
    return first;
  }

  // A collective call begins to send on a lane. Everything else in flight there belongs to calls in which
  // this rank has done its part, so it will be read.
  virtual void begin_call(int, Traffic) {}
  virtual void begin_slice(int) {}
};

}  // namespace ringreduce
